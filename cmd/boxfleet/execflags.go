package main

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/boxfleet/boxfleet/protocol"
)

// execFlags are the flags for how a command runs.
type execFlags struct {
	timeout, grace time.Duration
	startTimeout   time.Duration
	outputLimit    string
	stdin          bool
	detached       bool // nobody stays to copy stdin, so it travels with the request
}

func (f *execFlags) add(cmd *cobra.Command) {
	cmd.Flags().DurationVar(&f.timeout, "timeout", 0,
		"end the command this long after its start (default: never)")
	cmd.Flags().DurationVar(&f.startTimeout, "start-timeout", 0,
		"fail if the command has not started this long after it was accepted (default 2m)")
	cmd.Flags().DurationVar(&f.grace, "grace", 0, "time between TERM and KILL when the command is ended (default 5s)")
	cmd.Flags().StringVar(&f.outputLimit, "output-limit", "",
		"keep at most this many `bytes` each of stdout and stderr (default 256MiB)")
	cmd.Flags().BoolVarP(&f.stdin, "stdin", "i", false, "pass stdin to the command while it runs")
}

func (f *execFlags) spec(stdin io.Reader, command []string) (*protocol.ExecSpec, error) {
	spec := &protocol.ExecSpec{Command: command, Timeout: protocol.Duration(f.timeout), Grace: protocol.Duration(f.grace),
		StartTimeout: protocol.Duration(f.startTimeout)}
	var err error
	if f.outputLimit != "" {
		if spec.OutputLimit, err = protocol.ParseBytes(f.outputLimit); err != nil {
			return nil, usage("--output-limit: %v", err)
		}
	}
	if f.stdin && f.detached {
		if spec.Stdin, err = io.ReadAll(io.LimitReader(stdin, protocol.MaxStdin+1)); err != nil {
			return nil, fmt.Errorf("read stdin: %w", err)
		}
		if len(spec.Stdin) > protocol.MaxStdin {
			return nil, usage("--stdin with --detach: stdin has more than %s, the most that travels with the request; use "+
				"`boxfleet exec -i` without --detach instead", protocol.Bytes(protocol.MaxStdin))
		}
	}
	return spec, nil
}

// input returns stdin if the command gets it while it runs, and otherwise nil.
func (f *execFlags) input(stdin io.Reader) io.Reader {
	if f.stdin {
		return stdin
	}
	return nil
}
