package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
)

// supervisorVariable is an environment variable with the path of the supervisor that [eachApart] built.
const supervisorVariable = "BOXFLEET_TEST_BUILT_SUPERVISOR"

// isWholePackage reports whether the command line asks for all tests and for nothing that only one process can do, such
// as a profile.
func isWholePackage() bool {
	usual := []string{"test.paniconexit0", "test.testlogfile", "test.timeout", "test.count", "test.v", "test.parallel"}
	whole := true
	flag.Visit(func(f *flag.Flag) { whole = whole && slices.Contains(usual, f.Name) })
	return whole
}

// eachApart runs each test in a process of its own, and as many processes at once as -parallel allows. It returns the
// exit code. Most tests change the environment, the working directory or the logger of their process. So they cannot
// run at once in one process, and they wait most of the time.
func eachApart() int {
	names, err := exec.Command(os.Args[0], "-test.list=^(Test|Example|Fuzz)").Output()
	if err == nil && len(names) == 0 {
		err = fmt.Errorf("%s lists no test", os.Args[0])
	}
	var dir string
	if err == nil {
		dir, err = os.MkdirTemp("", "boxfleet-supervisor-")
		defer os.RemoveAll(dir)
	}
	supervisor := filepath.Join(dir, "boxfleet-supervisor")
	if err == nil {
		err = buildSupervisor(supervisor)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	next := make(chan string)
	var mu sync.Mutex
	code := 0
	var running sync.WaitGroup
	for range flag.Lookup("test.parallel").Value.(flag.Getter).Get().(int) {
		running.Go(func() {
			runtime.LockOSThread() // a process that this thread starts is killed when the thread ends
			for name := range next {
				out, err := runApart(name, supervisor)
				mu.Lock()
				if err != nil {
					code = 1
					fmt.Printf("%s%s: %v\n", out, name, err)
				} else if isVerbose() {
					os.Stdout.Write(out)
				}
				mu.Unlock()
			}
		})
	}
	for name := range strings.Lines(string(names)) {
		next <- strings.TrimSpace(name)
	}
	close(next)
	running.Wait()
	fmt.Println(map[int]string{0: "PASS", 1: "FAIL"}[code])
	return code
}

func isVerbose() bool { return flag.Lookup("test.v").Value.String() != "false" }

// passed is the line that ends the output of a test binary. Only the end of the whole output may have it.
var passed = regexp.MustCompile(`(?m)^\x16?PASS\n`)

func runApart(name, supervisor string) ([]byte, error) {
	args := slices.DeleteFunc(slices.Clone(os.Args[1:]), func(arg string) bool {
		return strings.HasPrefix(arg, "-test.testlogfile=") // each process would overwrite this file
	})
	cmd := exec.Command(os.Args[0], append(args, "-test.run=^"+name+"$")...)
	cmd.Env = append(os.Environ(), supervisorVariable+"="+supervisor)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	return passed.ReplaceAll(out.Bytes(), nil), err
}

func buildSupervisor(file string) error {
	build := exec.Command("go", "build", "-o", file, "github.com/boxfleet/boxfleet/cmd/boxfleet-supervisor")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := build.CombinedOutput()
	if err != nil {
		return fmt.Errorf("build the supervisor: %w\n%s", err, out)
	}
	return nil
}
