package shell

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"iter"
	"strings"

	"github.com/boxfleet/boxfleet/sdk/environment"
)

// IDVariable is the environment variable that holds the id of a script in all its processes.
const IDVariable = "BOXFLEET_SCRIPT"

// whole is the end of every script. A script without it was cut off on its way, and must not run.
const whole = "# whole"

// readScript makes a shell run the script that it reads from its standard input, if the script is whole. readCommand
// does the same with a command in a here-document. The command then finds an empty input.
const (
	readScript  = `boxfleet_script=$(cat); case $boxfleet_script in *"` + whole + `") eval "$boxfleet_script";; esac`
	readCommand = `eval "$(cat)"`
)

// Script is a script for a POSIX shell.
type Script struct {
	ID   string // hex digits and dots; the processes of the script must have it in [IDVariable]
	Text string // what the shell runs; it must arrive whole
	User string // the user who runs it, from [environment.Options]; "" for the default
}

// maxWithin bounds the ids of the scripts around a script, in bytes.
const maxWithin = 512

// Within returns the script with an id that includes the ids in value. A runner that starts programs as children of
// this process passes its own [IDVariable] as value. If this process belongs to a script itself, the end of that script
// then also ends this one.
func (s Script) Within(value string) Script {
	if value != "" && len(value) <= maxWithin && strings.Trim(value, "0123456789abcdef.") == "" {
		s.ID += "." + value
	}
	return s
}

// Argv returns a command that runs the script when its standard input is Text.
func (s Script) Argv() []string {
	return []string{"env", IDVariable + "=" + s.ID, "sh", "-c", readScript}
}

// Command returns the command of [Script.Argv] as text that every login shell understands alike.
func (s Script) Command() string {
	return "exec env " + IDVariable + "=" + s.ID + " sh -c '" + readScript + "'"
}

// Whole returns one command for a POSIX shell that runs the script, for runners that have no standard input.
func (s Script) Whole() string {
	return "exec env " + IDVariable + "=" + s.ID + " sh -c " + environment.Quote(s.Text) + " </dev/null"
}

// Runner runs a script, yields what it prints as it arrives, and then one result with the exit code. The end of ctx
// ends the sequence; it need not end the processes, because the environment ends them with another script. An error
// says that the script could not be run, and should be an *[environment.Error].
type Runner func(ctx context.Context, s Script) iter.Seq2[environment.Event, error]

// newID returns 128 random bits in hex.
func newID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}
