package shell

import (
	"bytes"
	"strconv"
	"strings"

	"github.com/boxfleet/boxfleet/sdk/environment"
)

const (
	// maxNoise is how much of the output before the first mark an error shows, in bytes.
	maxNoise = 2 << 10
	// maxWords bounds the text that follows a mark, up to the end of its line, in bytes.
	maxWords = 64
)

// marks finds the output of a command in the output of its script.
type marks struct {
	mark   string
	stdout marked
	stderr marked
	exit   *int // exit code of the script itself
}

// marked is one stream of a script.
type marked struct {
	held  []byte // not decided yet
	noise []byte // the last bytes before the first mark
	begin string // the word after the first mark: "start", or why the command did not run
	end   string // the exit code after the last mark
}

func newMarks() *marks { return &marks{mark: "boxfleet-" + newID()} }

// script returns the script that runs a command between two marks. A separate shell runs the command, so that exit,
// exec and $$ have their usual meaning.
func (m *marks) script(command string, o environment.Options) (string, error) {
	prefix, err := environment.BuildShellEnvPrefix(o.Env)
	if err != nil {
		return "", err
	}
	if prefix != "" {
		prefix += ":\n"
	}
	var s strings.Builder
	if o.Dir != "" {
		dir := environment.Quote(rooted(o.Dir))
		s.WriteString("cd " + dir + " 2>/dev/null || { [ -e " + dir + " ] && echo " + m.mark + " baddir || echo " + m.mark +
			" nodir; exit 0; }\n")
	}
	s.WriteString("echo " + m.mark + " start; echo " + m.mark + " start >&2\n")
	end := "end-" + newID()
	s.WriteString("sh -c '" + readCommand + "' <<'" + end + "'\n" + prefix + command + "\n" + end + "\n")
	s.WriteString("r=$?; echo " + m.mark + " $r; echo " + m.mark + " $r >&2\n" + whole + "\n")
	return s.String(), nil
}

// rooted makes a path that no command takes for an option.
func rooted(path string) string {
	if strings.HasPrefix(path, "/") {
		return path
	}
	return "./" + path
}

// take reads an event of the script and yields output of the command. It returns false if yield did.
func (m *marks) take(e environment.Event, yield func(environment.Event) bool) bool {
	if e.Result != nil {
		m.exit = &e.Result.ExitCode
		return m.flush(yield)
	}
	s := &m.stdout
	if e.Stream == environment.Stderr {
		s = &m.stderr
	}
	if s.end != "" {
		return true // a process in the background prints after the end
	}
	s.held = append(s.held, e.Data...)
	for s.begin == "" {
		word, before, found := m.cut(s)
		if !found {
			s.noise = lastOf(append(s.noise, before...), maxNoise)
			return true
		}
		s.noise = lastOf(append(s.noise, before...), maxNoise)
		s.begin = word
	}
	word, out, found := m.cut(s)
	if found {
		s.end = word
	}
	return len(out) == 0 || yield(environment.Event{Stream: e.Stream, Data: out})
}

// cut takes the bytes before the next mark from the held bytes. With a whole mark, it also takes the mark and returns
// the word after it.
func (m *marks) cut(s *marked) (word string, before []byte, found bool) {
	at := bytes.Index(s.held, []byte(m.mark))
	if at < 0 {
		keep := partOf(s.held, m.mark)
		before, s.held = s.held[:len(s.held)-keep], bytes.Clone(s.held[len(s.held)-keep:])
		return "", before, false
	}
	line := s.held[at+len(m.mark):]
	end := bytes.IndexByte(line, '\n')
	if end < 0 && len(line) <= maxWords {
		before, s.held = s.held[:at], bytes.Clone(s.held[at:])
		return "", before, false
	}
	end = max(end, 0)
	word, before = strings.TrimSpace(string(line[:end])), s.held[:at]
	s.held = bytes.Clone(line[min(end+1, len(line)):])
	return word, before, true
}

// partOf returns how many bytes at the end of data may be the beginning of mark.
func partOf(data []byte, mark string) int {
	for n := min(len(data), len(mark)-1); n > 0; n-- {
		if string(data[len(data)-n:]) == mark[:n] {
			return n
		}
	}
	return 0
}

func lastOf(data []byte, limit int) []byte { return data[max(0, len(data)-limit):] }

// done reports whether both streams have ended.
func (m *marks) done() bool {
	return m.stdout.end != "" && m.stderr.end != "" || m.stdout.begin != "" && m.stdout.begin != "start"
}

// flush yields the held bytes when the output ends without a last mark.
func (m *marks) flush(yield func(environment.Event) bool) bool {
	for stream, s := range map[environment.Stream]*marked{environment.Stdout: &m.stdout, environment.Stderr: &m.stderr} {
		held := s.held
		s.held = nil
		if s.begin == "" {
			s.noise = lastOf(append(s.noise, held...), maxNoise)
		} else if s.end == "" && len(held) > 0 && !yield(environment.Event{Stream: stream, Data: held}) {
			return false
		}
	}
	return true
}

// result returns how the command ended. failure is the error of the runner.
func (m *marks) result(failure error) (*environment.Result, error) {
	switch m.stdout.begin {
	case "nodir":
		return nil, &environment.Error{Kind: environment.NotFound, Field: "dir", Message: "there is no such directory"}
	case "baddir":
		return nil, &environment.Error{Kind: environment.NotDirectory, Field: "dir",
			Message: "it is not a directory, or the user may not enter it"}
	}
	if code, err := strconv.Atoi(m.stdout.end); err == nil {
		return &environment.Result{ExitCode: code}, nil
	}
	switch {
	case failure != nil:
		return nil, failure
	case m.exit != nil && m.stdout.begin == "start":
		return &environment.Result{ExitCode: *m.exit}, nil // the command killed the shell that ran it
	case m.exit != nil:
		return nil, environment.Errorf(environment.Unavailable, "the shell ended with exit code %d before it ran the "+
			"command: %s", *m.exit, bytes.TrimSpace(append(m.stderr.noise, m.stdout.noise...)))
	}
	return nil, environment.Errorf(environment.Unavailable, "the connection to the shell ended before the command did")
}
