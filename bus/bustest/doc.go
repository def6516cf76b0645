// Package bustest owns help for testing package bus: a broker in memory that
// loses, holds and repeats messages on command ([Mem]), and the contract of
// bus.Conn as a suite that every implementation passes ([TestConn]). It knows
// nothing about calls.
//
//	mem := bustest.NewMem(bustest.Options{})
//	defer mem.Close()
//	node, caller := mem.Open(), mem.Open()
//	caller.Out.Drop("apbus.v1.node.>", 1) // one lost ping
//	node.Freeze()                          // a stopped process
//
// Everything blocks on channels and conditions only, so a Mem runs on the fake
// clock of a testing/synctest bubble.
package bustest
