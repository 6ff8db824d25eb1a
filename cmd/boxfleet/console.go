package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/boxfleet/boxfleet/protocol"
)

// console prints the messages and results of a command, as text or as JSON, and reads answers of the user. Its messages
// and errors contain no credentials.
type console struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	config         *config // the output format, and the credentials to remove from messages

	warnedOfStdin bool // the warning about unread stdin was printed
}

// json reports whether the output format is JSON.
func (con *console) json() bool { return con.config.Output == outputJSON }

// show prints a value as one line of JSON or, for the output format text, calls text to print it.
func (con *console) show(value any, text func(w io.Writer)) error {
	if con.json() {
		return con.line(value)
	}
	text(con.plain(con.stdout))
	return nil
}

// line prints a value as one line of JSON.
func (con *console) line(value any) error { return json.NewEncoder(jsonText{con.stdout}).Encode(value) }

// note prints a message to stderr for people, not for programs.
func (con *console) note(format string, args ...any) {
	w := con.plain(con.stderr)
	fmt.Fprintf(con.stderr, "%s %s\n", w.paint(yellow, "boxfleet:"),
		plain(indented(con.config.redacted(fmt.Sprintf(format, args...)))))
}

// showNames prints names, one per line.
func (con *console) showNames(names []string) error {
	return con.show(names, func(w io.Writer) {
		for _, name := range names {
			fmt.Fprintln(w, name)
		}
	})
}

// complain prints an error to stderr in the configured output format.
func (con *console) complain(err error) {
	if con.json() {
		e := *protocol.AsError(err)
		e.Message = con.config.redacted(e.Message)
		data, jsonErr := json.Marshal(map[string]*protocol.Error{"error": &e})
		if jsonErr == nil {
			fmt.Fprintln(jsonText{con.stderr}, string(data))
			return
		}
	}
	w := con.plain(con.stderr)
	fmt.Fprintf(con.stderr, "%s %s\n", w.paint(red, "boxfleet:"), plain(indented(con.config.redacted(err.Error()))))
}

// say prints a line of server status to stdout.
func (con *console) say(format string, args ...any) {
	fmt.Fprintf(con.plain(con.stdout), format+"\n", args...)
}

// confirm asks the user a question at the terminal. It returns an error if the answer is not yes or stdin is not a
// terminal.
func (con *console) confirm(question string) error {
	f, ok := con.stdin.(interface{ Fd() uintptr })
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return usage("cannot ask %q: stdin is not a terminal; use --yes", question)
	}
	fmt.Fprintf(con.plain(con.stderr), "%s [y/N] ", question)
	line, _ := bufio.NewReader(con.stdin).ReadString('\n') // the end of input means no
	switch strings.ToLower(strings.TrimSpace(line)) {
	case "y", "yes":
		return nil
	}
	return protocol.Errorf(protocol.Cancelled, "", "nothing was changed")
}

// warnOfStdin warns once if stdin has data that the command does not get without --stdin. It does not warn about a
// terminal, an empty file or an empty pipe.
func (con *console) warnOfStdin(given bool) {
	if given || con.warnedOfStdin || !hasData(con.stdin) {
		return
	}
	con.warnedOfStdin = true
	con.note("stdin has data that is not passed to the command; use -i to pass it")
}

// hasData reports whether a file or pipe has unread data.
func hasData(stdin io.Reader) bool {
	f, ok := stdin.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	if err != nil {
		return false
	}
	switch {
	case info.Mode().IsRegular():
		at, err := f.Seek(0, io.SeekCurrent)
		return err == nil && at < info.Size()
	case info.Mode()&(os.ModeNamedPipe|os.ModeSocket) != 0:
		n, err := unix.IoctlGetInt(int(f.Fd()), unix.TIOCINQ)
		return err == nil && n > 0
	}
	return false
}
