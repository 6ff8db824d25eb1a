package part

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// Process is a part of a deployment in its own process.
type Process struct {
	cmd     *exec.Cmd
	stdin   io.WriteCloser
	answers chan string // lines that the process printed
	exited  chan struct{}

	mu  sync.Mutex
	log bytes.Buffer
}

// answersWithin is how long Answer waits if the caller's context has no deadline.
const answersWithin = 30 * time.Second

// logKept is the minimum number of bytes that are kept at the end of a process's log.
const logKept = 64 << 10

// Start starts this binary again with a role in the environment. It does not wait until the process is ready.
func Start(variable string, role any) (*Process, error) {
	encoded, err := json.Marshal(role)
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &Process{cmd: exec.Command(self), answers: make(chan string, 1), exited: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), variable+"="+string(encoded))
	// Ctrl-C must reach only the program, which then ends this process.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p.cmd.Stderr = p
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		defer close(p.exited)
		for lines := bufio.NewScanner(stdout); lines.Scan(); {
			p.answers <- lines.Text()
		}
		_ = p.cmd.Wait() // the process's log says how the process ended
	}()
	return p, nil
}

// Write appends to the process's log.
func (p *Process) Write(data []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.log.Len() > 2*logKept {
		p.log.Next(p.log.Len() - logKept)
	}
	return p.log.Write(data)
}

// LogEnd returns the end of the process's log.
func (p *Process) LogEnd() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	log := p.log.Bytes()
	return string(log[max(0, len(log)-4<<10):])
}

// Answer waits for the process's next line, which is JSON, and decodes the line into v. See answersWithin for its time
// limit.
func (p *Process) Answer(ctx context.Context, v any) error {
	if _, bounded := ctx.Deadline(); !bounded {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, answersWithin)
		defer cancel()
	}
	select {
	case line := <-p.answers:
		if err := json.Unmarshal([]byte(line), v); err != nil {
			return fmt.Errorf("a part of the deployment printed %q: %w", line, err)
		}
		return nil
	case <-p.exited:
		return fmt.Errorf("a process of the deployment ended:\n%s", p.LogEnd())
	case <-ctx.Done():
		return fmt.Errorf("a process of the deployment does not answer: %w\n%s", ctx.Err(), p.LogEnd())
	}
}

// Ask sends the process a command and decodes the answer into v, which may be nil.
func (p *Process) Ask(ctx context.Context, command string, v any) error {
	if _, err := fmt.Fprintln(p.stdin, command); err != nil {
		return err
	}
	var a answer
	if err := p.Answer(ctx, &a); err != nil {
		return err
	}
	if a.Error != "" {
		return fmt.Errorf("%s: %s", command, a.Error)
	}
	if v == nil {
		return nil
	}
	return json.Unmarshal(a.Value, v)
}

// Pid returns the process's id.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Kill ends the process with SIGKILL and waits.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill() // fails if the process has ended
	p.awaitExit()
}

// Stop asks the process to end and waits until it has ended.
func (p *Process) Stop() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // fails if the process has ended
	p.awaitExit()
}

func (p *Process) awaitExit() {
	for {
		select {
		case <-p.answers: // discard late answers
		case <-p.exited:
			return
		}
	}
}
