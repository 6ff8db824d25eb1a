package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	if encoded := os.Getenv(roleVariable); encoded != "" {
		if err := play(encoded, os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, "error:", err)
			os.Exit(1)
		}
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// options are the command-line options.
type options struct {
	workers      int           // simulated hosts
	processes    int           // number of processes that run the workers
	coordinators int           // number of coordinator processes
	sandboxes    int           // number of sandboxes to create
	rate         float64       // creates per second; 0: as fast as the fleet accepts creates
	parallel     int           // number of concurrent creates if rate is 0
	living       int           // number of sandboxes that exist before the run
	over         int           // number of sandboxes that were deleted before the run
	backlog      bool          // accept all creates before the first host starts
	create       time.Duration // how long the simulated engine takes for a create
	settle       time.Duration // how long to measure idle coordinators; 0: do not measure
	restart      bool          // restart NATS once all sandboxes are ready
	failOver     bool          // kill the scheduling coordinator during the creates
	profile      string        // directory for CPU profiles
	limit        time.Duration // time limit of each step
	short        bool          // do not check goals
	insecure     bool          // without credentials
}

func parse(args []string, stderr io.Writer) (options, error) {
	var o options
	f := flag.NewFlagSet("load", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.IntVar(&o.workers, "workers", 100, "simulated hosts, each with a worker")
	f.IntVar(&o.processes, "processes", 2, "processes that run the workers")
	f.IntVar(&o.coordinators, "coordinators", 1, "coordinators, each in its own process")
	f.IntVar(&o.sandboxes, "sandboxes", 1000, "sandboxes to create")
	f.Float64Var(&o.rate, "rate", 0, "creates per second; 0: as fast as they are accepted")
	f.IntVar(&o.parallel, "parallel", 64, "concurrent creates if there is no rate")
	f.IntVar(&o.living, "living", 0, "sandboxes that are ready before the run, spread over the hosts")
	f.IntVar(&o.over, "over", 0, "sandboxes that were deleted before the run")
	f.BoolVar(&o.backlog, "backlog", false, "accept all creates before there is a host")
	f.DurationVar(&o.create, "create", 300*time.Millisecond, "how long the simulated engine takes for a create")
	f.DurationVar(&o.settle, "settle", 5*time.Second, "how long to measure the cost of idle coordinators; 0: not at all")
	f.BoolVar(&o.restart, "restart", false, "kill and restart the NATS server once all sandboxes are ready")
	f.BoolVar(&o.failOver, "failover", false,
		"kill the scheduling coordinator while sandboxes are created; needs two coordinators")
	f.StringVar(&o.profile, "profile", "",
		"write CPU profiles of the coordinators and of NATS, during the creates and while idle, into this `directory`")
	f.DurationVar(&o.limit, "limit", 10*time.Minute, "longest time of a step")
	f.BoolVar(&o.insecure, "insecure", false, "run without credentials (default: credentials for each role)")
	f.BoolVar(&o.short, "short", false, "do not check goals: the run is too small or its machine too busy")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	switch {
	case f.NArg() > 0:
		return o, fmt.Errorf("unexpected argument %q", f.Arg(0))
	case o.workers < 1 || o.processes < 1 || o.coordinators < 1 || o.sandboxes < 1 || o.parallel < 1:
		return o, errors.New("-workers, -processes, -coordinators, -sandboxes and -parallel must be at least 1")
	case o.rate < 0 || o.living < 0 || o.over < 0 || o.create < 0 || o.settle < 0 || o.limit <= 0:
		return o, errors.New("-rate, -living, -over, -create and -settle must not be negative, -limit must be more than 0")
	case o.failOver && o.coordinators < 2:
		return o, errors.New("-failover needs -coordinators 2")
	case o.backlog && (o.rate > 0 || o.living > 0):
		return o, errors.New("-backlog cannot be combined with -rate or -living")
	}
	o.processes = min(o.processes, o.workers)
	return o, nil
}

// run is the whole program and returns its exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	o, err := parse(args, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err != nil {
		fmt.Fprintln(stderr, "error:", err)
		return 2
	}
	r := &report{short: o.short, out: stdout}
	err = measure(ctx, o, r)
	r.end(err)
	if err != nil || !r.ok() {
		return 1
	}
	return 0
}
