package jetstream

// Received returns how many bytes the connection has received in all messages.
func (c *connection) Received() uint64 { return c.nc.Stats().InBytes }
