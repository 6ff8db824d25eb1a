package halt

import (
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// A test's own program, started again, is a process of many threads that are at work.
func TestMain(m *testing.M) {
	switch os.Getenv("HALT_CHILD") {
	case "busy":
		var work atomic.Uint64
		for range 8 {
			go func() {
				for work.Add(1) > 0 {
				}
			}()
		}
		os.Stdout.WriteString("begun\n")
		select {}
	case "self":
		os.Stdout.WriteString("before\n")
		Self()
		os.Stdout.WriteString("after\n")
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func child(t *testing.T, what string) (cmd *exec.Cmd, next func() string) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd = exec.Command(os.Args[0])
	cmd.Env, cmd.Stdout = append(os.Environ(), "HALT_CHILD="+what), w
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()         // it was killed
		r.Close()
	})
	return cmd, func() string {
		line := make([]byte, 20)
		n, _ := r.Read(line) // nothing: it has ended
		return string(line[:n])
	}
}

// cpu is the processor time that a process has used, in ticks of 10 ms.
func cpu(t *testing.T, pid int) int {
	t.Helper()
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(string(data[strings.LastIndexByte(string(data), ')'):]))
	user, _ := strconv.Atoi(fields[12])
	system, _ := strconv.Atoi(fields[13])
	return user + system
}

func TestAHaltedProcessDoesNothing(t *testing.T) {
	cmd, next := child(t, "busy")
	next()
	for range 20 {
		if err := Process(cmd.Process.Pid); err != nil {
			t.Fatal(err)
		}
		before := cpu(t, cmd.Process.Pid)
		time.Sleep(50 * time.Millisecond)
		if used := cpu(t, cmd.Process.Pid) - before; used > 0 {
			t.Errorf("it worked for %d ms", used*10)
		}
		if err := cmd.Process.Signal(syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Millisecond)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // it says that it was killed
	if err := Process(cmd.Process.Pid); err == nil {
		t.Error("a process that is gone was stopped")
	}
}

func TestWhoHaltsItselfStandsThere(t *testing.T) {
	cmd, next := child(t, "self")
	if got := next(); got != "before\n" {
		t.Fatalf("it says %q", got)
	}
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		still, err := StandsStill(cmd.Process.Pid)
		if err != nil || time.Now().After(deadline) {
			t.Fatalf("it has not stopped: %v", err)
		}
		if still {
			break
		}
	}
	if err := cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if got := next(); got != "after\n" {
		t.Errorf("it says %q", got)
	}
}
