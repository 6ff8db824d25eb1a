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

// Commands that every part supports.
const (
	CommandProfile    = "profile" // starts a CPU profile; the argument is the path of its file
	CommandEndProfile = "end-profile"
)

// answer is a part's answer to a command.
type answer struct {
	Error string          `json:"error,omitempty"`
	Value json.RawMessage `json:"value,omitempty"`
}

// Command carries out one command of the program. Its result is returned as JSON.
type Command func(argument string) (any, error)

// Obey carries out the program's commands until stdin ends. commands holds the part's own commands and may be nil.
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
				return nil, errors.New("no profile was started")
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
			return // the program has ended
		}
	}
}

func obeyed(c Command, name, argument string) answer {
	if c == nil {
		return answer{Error: fmt.Sprintf("unknown command %q", name)}
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
