package part

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/pprof"
	"strings"
)

// Commands that every part knows.
const (
	CommandProfile    = "profile" // and a path: a CPU profile goes there from now on
	CommandEndProfile = "end-profile"
)

// answer is what a part says to a command.
type answer struct {
	Error string          `json:"error,omitempty"`
	Value json.RawMessage `json:"value,omitempty"`
}

// Command does what a command asks for. What it returns goes back as JSON.
type Command func(argument string) (any, error)

// Obey does what the program says until it says no more. commands are the part's own; it may be nil.
func Obey(in io.Reader, out io.Writer, commands map[string]Command) {
	var profile *os.File
	all := map[string]Command{
		CommandProfile: func(path string) (_ any, err error) {
			if profile, err = os.Create(path); err == nil {
				err = pprof.StartCPUProfile(profile)
			}
			return nil, err
		},
		CommandEndProfile: func(string) (any, error) {
			if profile == nil {
				return nil, errors.New("no profile was begun")
			}
			pprof.StopCPUProfile()
			return nil, profile.Close()
		},
	}
	for name, c := range commands {
		all[name] = c
	}
	for lines := bufio.NewScanner(in); lines.Scan(); {
		name, argument, _ := strings.Cut(lines.Text(), " ")
		if err := json.NewEncoder(out).Encode(obeyed(all[name], name, argument)); err != nil {
			return // nobody reads it any more
		}
	}
}

func obeyed(c Command, name, argument string) answer {
	if c == nil {
		return answer{Error: fmt.Sprintf("there is no command %q", name)}
	}
	value, err := c(argument)
	if err != nil {
		return answer{Error: err.Error()}
	}
	encoded, err := json.Marshal(value)
	if err != nil {
		return answer{Error: err.Error()}
	}
	return answer{Value: encoded}
}
