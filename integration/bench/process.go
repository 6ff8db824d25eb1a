package main

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

// process is a part of a deployment, running as a process of its own.
type process struct {
	cmd     *exec.Cmd
	stdin   io.WriteCloser
	answers chan string // lines that it printed
	exited  chan struct{}

	mu  sync.Mutex
	log bytes.Buffer
}

// startProcess starts a role, and does not wait until it is ready.
func startProcess(r role) (*process, error) {
	encoded, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &process{cmd: exec.Command(self), answers: make(chan string, 1), exited: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), roleVariable+"="+string(encoded))
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is for the bench, which then ends it
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
		_ = p.cmd.Wait() // how it ended is in its log
	}()
	return p, nil
}

// Write takes what the process logs.
func (p *process) Write(data []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.Write(data)
}

// lastWords is the end of what the process logged.
func (p *process) lastWords() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	log := p.log.Bytes()
	return string(log[max(0, len(log)-4<<10):])
}

// answer waits for the next line of the process.
func (p *process) answer(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	select {
	case line := <-p.answers:
		return line, nil
	case <-p.exited:
		return "", fmt.Errorf("a process of the deployment ended:\n%s", p.lastWords())
	case <-ctx.Done():
		return "", fmt.Errorf("a process of the deployment does not answer: %w\n%s", ctx.Err(), p.lastWords())
	}
}

// hello waits until the process takes work.
func (p *process) hello(ctx context.Context) (hello, error) {
	var h hello
	line, err := p.answer(ctx)
	if err != nil {
		return h, err
	}
	return h, json.Unmarshal([]byte(line), &h)
}

// tell gives the process a command and waits until it is done.
func (p *process) tell(ctx context.Context, command string) error {
	if _, err := fmt.Fprintln(p.stdin, command); err != nil {
		return err
	}
	line, err := p.answer(ctx)
	if err == nil && line != answerDone {
		err = fmt.Errorf("%s: %s", command, line)
	}
	return err
}

func (p *process) pid() int { return p.cmd.Process.Pid }

// kill ends the process as kill -9 does, and waits.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // fails when it has ended
	for {
		select {
		case <-p.answers: // of nobody any more
		case <-p.exited:
			return
		}
	}
}
