// Package packet is the connection between a worker and a helper in a container: a unix socket of the type
// SOCK_SEQPACKET. A packet is sent and received as a whole. Its first byte says its kind, and the rest is its body. A
// descriptor travels with the packet to which it belongs.
//
//	worker                                helper
//	        Part…, Message (a call)  -->
//	        Data…, End               -->
//	                                 <--  Data…
//	                                 <--  Part…, Message (a reply), with a descriptor
//
// Both ends treat the other one as hostile: they bound every size, and close descriptors that they did not ask for.
//
// The package imports protocol for the codec.
package packet
