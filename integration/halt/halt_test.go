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

// TestMain runs the tests. In a process that a test started, it runs many busy threads.
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
		_ = cmd.Process.Kill() // fails if the process has ended
		_ = cmd.Wait()         // reports the kill
		r.Close()
	})
	return cmd, func() string {
		line := make([]byte, 20)
		n, _ := r.Read(line) // reads nothing if the process has ended
		return string(line[:n])
	}
}

// cpu returns the processor time that a process has used, in ticks of 10 ms.
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
			t.Errorf("the stopped process used %d ms of processor time", used*10)
		}
		if err := cmd.Process.Signal(syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Millisecond)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // reports the kill
	if err := Process(cmd.Process.Pid); err == nil {
		t.Error("stopping a process that has ended succeeded")
	}
}

func TestSelfHaltsTheCaller(t *testing.T) {
	cmd, next := child(t, "self")
	if got := next(); got != "before\n" {
		t.Fatalf("the process printed %q", got)
	}
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		still, err := StandsStill(cmd.Process.Pid)
		if err != nil || time.Now().After(deadline) {
			t.Fatalf("the process has not stopped: %v", err)
		}
		if still {
			break
		}
	}
	if err := cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if got := next(); got != "after\n" {
		t.Errorf("the process printed %q", got)
	}
}
