package control

// MaxInput is the maximum number of bytes in one [Input]. Such a command fits into the read buffer that a supervisor
// keeps between two commands.
const MaxInput = 60 << 10

// MaxHeldInput limits how many bytes a supervisor holds, of all execs together, while it waits for processes to read
// them. At the limit, it takes only the bytes that fit into the pipe of a process immediately.
const MaxHeldInput = 4 << 20

// Input is a piece of the stdin of an exec with [Start.OpenStdin]. A byte is taken once the supervisor has
// written it to the exec's pipe. A piece may be sent again: the supervisor skips the bytes that it has taken before. It
// refuses a piece that would leave a gap behind the bytes taken so far.
//
// The supervisor sends the Reply, with an [InputStatus], when it has taken the whole piece. It replies earlier, with
// the number of bytes taken, if another Input of the exec arrives, or if it holds too many bytes already. A process
// that does not read delays only the Reply. A Reply with one of these errors ends the input:
//   - failed_precondition with reason broken_pipe if no process has the exec's stdin open any more
//   - failed_precondition with reason input_closed for bytes after the end
//   - failed_precondition with reason exec_already_terminal if the exec has ended
//
// Further errors: not_found if the supervisor does not know the exec; failed_precondition with reason no_stdin if the
// exec was started without OpenStdin; out_of_range with reason input_gap for a piece that begins too late;
// invalid_argument with reason too_large for more than [MaxInput] bytes.
type Input struct {
	ID     string `json:"id"`
	Offset int64  `json:"offset,omitempty"` // number of the first byte of Data; the first byte of the stdin is 0
	Data   []byte `json:"data,omitempty"`
	EOF    bool   `json:"eof,omitempty"` // no bytes follow Data: the process reads the end of file

	// Attach asks how much was taken. An earlier piece that waits for the process is given up, and answered. The other
	// fields have no meaning.
	Attach bool `json:"attach,omitempty"`

	// Watch asks to be told how the input ends. The Reply comes with one of the errors above, when the exec ends or a
	// write finds that no process reads. A Watch is answered early, without an error, when another Watch of the exec
	// arrives. The other fields have no meaning.
	Watch bool `json:"watch,omitempty"`
}

// InputStatus says how much of an exec's stdin a supervisor has taken.
type InputStatus struct {
	Taken  int64 `json:"taken,omitempty"`  // number of bytes written to the exec's pipe
	Closed bool  `json:"closed,omitempty"` // the end of the stdin was passed on
}
