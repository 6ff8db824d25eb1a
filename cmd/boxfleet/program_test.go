package main

import (
	"bufio"
	"bytes"
	"flag"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// asProgram is an environment variable. If it is set, the test binary runs as the boxfleet program.
const asProgram = "BOXFLEET_TEST_PROGRAM"

// TestAsProgram is not a test. Other tests start the test binary with [asProgram] set; the test binary then runs the
// program with the arguments after "--".
func TestAsProgram(t *testing.T) {
	if os.Getenv(asProgram) == "" {
		t.Skip("other tests run it")
	}
	os.Args = append(os.Args[:1], flag.Args()...)
	main()
}

// programCommand returns a command that runs the program with these arguments.
func programCommand(args ...string) *exec.Cmd {
	cmd := exec.Command(os.Args[0], append([]string{"-test.run=^TestAsProgram$", "--"}, args...)...)
	cmd.Env = append(os.Environ(), asProgram+"=1")
	return cmd
}

// process is a boxfleet program that runs in its own process.
type process struct {
	t      *testing.T
	cmd    *exec.Cmd
	stdout *bufio.Reader
	pipe   io.Closer // the end of the stdout pipe that the test reads
	stderr bytes.Buffer
	ended  chan struct{}
}

// startClient starts the program. Its stdout is a pipe that the test reads.
func startClient(t *testing.T, args ...string) *process {
	t.Helper()
	c := &process{t: t, cmd: programCommand(args...), ended: make(chan struct{})}
	c.cmd.Stderr = &c.stderr
	stdin, err := c.cmd.StdinPipe() // the test never writes to stdin
	if err != nil {
		t.Fatal(err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	c.cmd.Stdout, c.stdout, c.pipe = w, bufio.NewReader(r), r
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	go func() {
		defer close(c.ended)
		_ = c.cmd.Wait() // ProcessState says how the process ended
	}()
	t.Cleanup(func() {
		_ = c.cmd.Process.Kill() // fails if the process has ended
		<-c.ended
		r.Close()
		stdin.Close()
	})
	return c
}

// prints reads one line of stdout, and fails the test unless the line is want.
func (c *process) prints(want string) {
	c.t.Helper()
	got, err := c.stdout.ReadString('\n')
	if got != want+"\n" {
		c.t.Fatalf("the client printed %q (%v), want %q; stderr: %s", got, err, want, c.stderr.String())
	}
}

func (c *process) signal(s syscall.Signal) { _ = c.cmd.Process.Signal(s) } // fails if the process has ended

// hasEnded reports whether the process has ended.
func (c *process) hasEnded() bool {
	select {
	case <-c.ended:
		return true
	default:
		return false
	}
}

// ends waits until the process has ended, and returns the exit code, or -1 if a signal killed the process.
func (c *process) ends(within time.Duration) int {
	c.t.Helper()
	select {
	case <-c.ended:
		return c.cmd.ProcessState.ExitCode()
	case <-time.After(within):
		c.t.Fatalf("%q did not end within %s: %s", c.cmd.Args[3:], within, c.stderr.String())
		return 0
	}
}

// says fails the test unless stderr contains each of these parts.
func (c *process) says(parts ...string) {
	c.t.Helper()
	for _, want := range parts {
		if !strings.Contains(c.stderr.String(), want) {
			c.t.Errorf("%q printed %q to stderr, which lacks %q", c.cmd.Args[3:], c.stderr.String(), want)
		}
	}
}
