package bus

import "time"

// Stall makes n believe that its process stood still for d until now. A bubble
// cannot stop a process.
func (n *Node) Stall(d time.Duration) { n.beat.Store(time.Now().Add(-d).UnixNano()) }
