package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
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
	short      bool
	insecure   bool     // measure a deployment without credentials
	only       []string // phases to run; empty: all phases
	out        string   // path of the JSON file
	cpuProfile string   // CPU profile of the deployment in the exec phase; the client's profile has the suffix .client
	past       []int    // numbers of past execs and past sandboxes to measure with, ascending
}

// shortSlack is the factor by which a short run may miss a target. A short run takes few samples on a machine that also
// does other work, so it detects only a slowdown by this factor.
const shortSlack = 4

func (o options) slack() float64 {
	if o.short {
		return shortSlack
	}
	return 1
}

// pick returns full, or short with the flag -short.
func (o options) pick(full, short int) int {
	if o.short {
		return short
	}
	return full
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
	report, err := measure(ctx, o, stderr)
	if err != nil {
		fmt.Fprintln(stderr, "error:", err)
		return 1
	}
	report.print(stdout)
	if err := report.save(o.out); err != nil {
		fmt.Fprintln(stderr, "error:", err)
		return 1
	}
	if !report.ok() {
		return 1
	}
	return 0
}

func parse(args []string, stderr io.Writer) (options, error) {
	var o options
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.BoolVar(&o.short, "short", false, "take few samples, under a minute: shows that it works, not how fast it is")
	flags.BoolVar(&o.insecure, "insecure", false,
		"measure a deployment without credentials (default: credentials for each role, and the rates of execs also without)")
	flags.StringVar(&o.out, "o", "bench.json", "write raw samples to this `file`")
	flags.StringVar(&o.cpuProfile, "cpuprofile", "",
		"write a CPU profile of the deployment process in the exec phase to this `file`, and the client's to file.client")
	only := flags.String("only", "", "run only these comma-separated `phases`: "+strings.Join(phaseNames(), ", "))
	past := flags.String("past", "",
		"measure the cost of these numbers of past execs and sandboxes, comma-separated, ascending (default "+
			"1000,10000,100000; with -short 1000)")
	err := flags.Parse(args)
	if err != nil {
		return o, err
	}
	if flags.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	if o.past, err = sizes(*past, o.short); err != nil || *only == "" {
		return o, err
	}
	o.only = strings.Split(*only, ",")
	for _, name := range o.only {
		if !slices.Contains(phaseNames(), name) {
			return o, fmt.Errorf("unknown phase %q; the phases are %s", name, strings.Join(phaseNames(), ", "))
		}
	}
	return o, nil
}

// sizes parses the value of -past.
func sizes(list string, short bool) (all []int, err error) {
	switch {
	case list == "" && short:
		return []int{1000}, nil
	case list == "":
		return []int{1000, 10000, 100000}, nil
	}
	for text := range strings.SplitSeq(list, ",") {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || len(all) > 0 && n <= all[len(all)-1] {
			return nil, fmt.Errorf("-past must be a list of ascending numbers, each at least 1, got %q", list)
		}
		all = append(all, n)
	}
	return all, nil
}
