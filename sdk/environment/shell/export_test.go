package shell

import "time"

// SetKillTime changes how long ending the processes of a script may take, for tests of connections that hang.
func (e *Environment) SetKillTime(d time.Duration) { e.killTime = d }
