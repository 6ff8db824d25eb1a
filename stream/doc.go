// Package stream carries bytes in both directions between two ends that exchange messages of limited size, over a
// transport that may lose, repeat and delay messages, and that may be cut off and come back. It knows neither NATS nor
// the operations that use streams.
//
//	program ── Read, Write ── Conn ── machine ── frames ── Transport
//
// A [Conn] is a net.Conn with half-close. Behind it, the machine decides which frame to send next and what a received
// frame changes. The machine is pure: it gets the time as a value, so tests run it with any loss and any delay.
//
// Each end keeps what the other end has not acknowledged, and takes no more than it has granted. So its memory is
// bounded by its windows, whatever the other end sends.
//
// The package imports only protocol.
package stream
