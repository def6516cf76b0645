// Package integration tests the whole system: real binaries, the real embedded
// server, kills, freezes and foreign clients. It holds no product code; what it
// shares between tests starts and stops processes.
package integration
