package kernel

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

// hold creates n file watchers, prints "held", and waits until stdin is closed.
func hold(n string) {
	count, _ := strconv.Atoi(n)
	for range count {
		if _, err := unix.InotifyInit1(0); err != nil {
			fmt.Println(err)
			return
		}
	}
	fmt.Println("held")
	_, _ = os.Stdin.Read(make([]byte, 1)) // returns when the test closes stdin
}

// The processes of each sandbox in this test have their own PID namespace, like the processes of a container.
func TestTheSandboxThatHoldsTheMostFileWatchersLosesThem(t *testing.T) {
	if n := os.Getenv(watchersVariable); n != "" {
		hold(n)
		os.Exit(0)
	}
	if os.Geteuid() != 0 {
		t.Skip("this test creates PID namespaces: run it as root")
	}
	containers, ended := map[int]string{}, map[string]chan struct{}{}
	for name, n := range map[string]int{"greedy": 20, "modest": 3} {
		// The shell is the container's first process, and its child holds the file watchers.
		cmd := exec.Command("sh", "-c", `"$0" -test.run='^TestTheSandboxThatHoldsTheMostFileWatchersLosesThem$'; :`,
			os.Args[0])
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
		exited := make(chan struct{})
		if line, err := bufio.NewReader(out).ReadString('\n'); strings.TrimSpace(line) != "held" {
			t.Fatalf("the process of %s printed %q instead of held: %v", name, line, err)
		}
		go func() {
			_ = cmd.Wait() // the process may be killed by the test
			close(exited)
		}()
		t.Cleanup(func() { in.Close(); <-exited })
		containers[cmd.Process.Pid], ended[name] = name, exited
	}
	if name, n := relieve(containers, 25); n != 0 {
		t.Errorf("relieve killed %d processes of %s, which has few enough file watchers", n, name)
	}
	if name, n := relieve(containers, 10); name != "greedy" || n != 1 {
		t.Errorf("relieve killed %d processes of %s, want one of greedy", n, name)
	}
	select {
	case <-ended["greedy"]:
	case <-time.After(30 * time.Second):
		t.Error("the process with the most file watchers still runs after 30 s")
	}
	select {
	case <-ended["modest"]:
		t.Error("relieve killed the process of modest")
	default:
	}
	if watchersUsedUp() {
		t.Error("watchersUsedUp returned true, although root can create file watchers")
	}
}

// The file watchers of a process with another user count as root's only if the process may have created them as root.
func TestFileWatchersOfOtherUsersAreIgnored(t *testing.T) {
	for status, want := range map[string]bool{
		"Name:\tx\nUid:\t0\t0\t0\t0\nCapBnd:\t0000000000000000\n":             true,
		"Name:\tx\nUid:\t1000\t1000\t1000\t1000\nCapBnd:\t0000000000000000\n": false,
		"Name:\tx\nUid:\t1000\t1000\t1000\t1000\nCapBnd:\t00000000a80405fb\n": true,
		"Name:\tx\nUid:\t1000\t1000\t1000\t1000\n":                            true,
	} {
		if got := isOrWasRoot(status); got != want {
			t.Errorf("a process with the status %q counts as root: %t, want %t", status, got, want)
		}
	}
	if !mayHoldRoots(os.Getpid()) && os.Getuid() == 0 {
		t.Error("the file watchers of this process, which runs as root, do not count as root's")
	}
	before := watchersOf(os.Getpid())
	f, err := os.Create(t.TempDir() + "/inotify.h")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if n := watchersOf(os.Getpid()); n > before {
		t.Errorf("a file with inotify in its name counts as a file watcher: there are %d, before %d", n, before)
	}
}
