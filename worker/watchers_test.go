package worker

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const watchersVariable = "BOXFLEET_TEST_WATCHERS"

// hold takes file watchers, says so, and waits for the end of its input.
func hold(n string) {
	count, _ := strconv.Atoi(n)
	for range count {
		if _, err := unix.InotifyInit1(0); err != nil {
			fmt.Println(err)
			return
		}
	}
	fmt.Println("held")
	_, _ = os.Stdin.Read(make([]byte, 1))
}

// TestTheSandboxThatHoldsTheMostFileWatchersLosesThem has processes in namespaces of their own, as containers have.
func TestTheSandboxThatHoldsTheMostFileWatchersLosesThem(t *testing.T) {
	if n := os.Getenv(watchersVariable); n != "" {
		hold(n)
		os.Exit(0)
	}
	if os.Geteuid() != 0 {
		t.Skip("namespaces of processes take root")
	}
	containers, ended := map[int]string{}, map[string]chan struct{}{}
	for name, n := range map[string]int{"greedy": 20, "modest": 3} {
		// The shell is the container's first process, and what it starts holds the file watchers.
		cmd := exec.Command("sh", "-c", `"$0" -test.run='^TestTheSandboxThatHoldsTheMostFileWatchersLosesThem$'; :`, os.Args[0])
		cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d", watchersVariable, n))
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID, Pdeathsig: syscall.SIGKILL}
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		over := make(chan struct{})
		if line, err := bufio.NewReader(out).ReadString('\n'); strings.TrimSpace(line) != "held" {
			t.Fatalf("%s: %q, %v", name, line, err)
		}
		go func() { _ = cmd.Wait(); close(over) }()
		t.Cleanup(func() { in.Close(); <-over })
		containers[cmd.Process.Pid], ended[name] = name, over
	}
	if name, n := relieve(containers, 25); n != 0 {
		t.Errorf("%d processes of %s are ended, though it holds no more than it may", n, name)
	}
	if name, n := relieve(containers, 10); name != "greedy" || n != 1 {
		t.Errorf("%d processes of %s are ended", n, name)
	}
	select {
	case <-ended["greedy"]:
	case <-time.After(30 * time.Second):
		t.Error("what held the most runs on")
	}
	select {
	case <-ended["modest"]:
		t.Error("another one is ended")
	default:
	}
	if watchersUsedUp() {
		t.Error("root is said to have no file watchers left")
	}
}

// What another user has is not root's, and its sandbox not to blame, unless it may have been root's before.
func TestFileWatchersOfOtherUsersAreNotRoots(t *testing.T) {
	for status, want := range map[string]bool{
		"Name:\tx\nUid:\t0\t0\t0\t0\nCapBnd:\t0000000000000000\n":             true,
		"Name:\tx\nUid:\t1000\t1000\t1000\t1000\nCapBnd:\t0000000000000000\n": false,
		"Name:\tx\nUid:\t1000\t1000\t1000\t1000\nCapBnd:\t00000000a80405fb\n": true,
		"Name:\tx\nUid:\t1000\t1000\t1000\t1000\n":                            true,
	} {
		if got := isOrWasRoot(status); got != want {
			t.Errorf("%q: %v", status, got)
		}
	}
	if !mayHoldRoots(os.Getpid()) && os.Getuid() == 0 {
		t.Error("this process is not root")
	}
	before := watchersOf(os.Getpid())
	f, err := os.Create(t.TempDir() + "/inotify.h")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if n := watchersOf(os.Getpid()); n > before {
		t.Errorf("a file of such a name counts: %d, then %d", before, n)
	}
}
