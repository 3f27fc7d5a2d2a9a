// Command proxy forwards TCP connections between two processes of a fault scenario and simulates faults of a network. It prints
// its listen address, reads one command per line from standard input, and answers each command with its counters as JSON:
//
//	to HOST:PORT            set the destination of new connections
//	forward                 forward everything (the state at the start)
//	hold up|down|both       forward nothing from the dialing side (up), to it (down), or in both directions; close nothing and
//	                        accept new connections, like a lost route. The next "forward" releases the held bytes.
//	refuse                  reset new connections
//	cut                     reset all connections
//	cut-after N [N...]      reset each of the next connections after N bytes down
//	slow BYTES              limit each direction to BYTES per second; 0 removes the limit
//	swap N                  exchange two consecutive data plane frames of one channel, N times
//	count                   only print the counters
//
// main.go forwards, and swap.go exchanges frames.
package main
