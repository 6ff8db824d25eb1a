package jetstream

// Received is how many bytes the connection has received, of messages of any kind.
func (c *Conn) Received() uint64 { return c.nc.Stats().InBytes }
