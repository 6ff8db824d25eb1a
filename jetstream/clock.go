package jetstream

import "time"

// Now returns the time of the store: the clock by which the log stamps its messages, as far as this side
// knows it. Events carry it, and whoever compares an event's time with the present asks for it, so that no two
// machines' clocks are compared.
func (c *Conn) Now() time.Time { return time.Now() }
