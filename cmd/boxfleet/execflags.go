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
}

func (f *execFlags) add(cmd *cobra.Command) {
	cmd.Flags().DurationVar(&f.timeout, "timeout", 0,
		"end the command this long after its start (default: never)")
	cmd.Flags().DurationVar(&f.startTimeout, "start-timeout", 0,
		"fail if the command has not started this long after it was accepted (default 2m)")
	cmd.Flags().DurationVar(&f.grace, "grace", 0, "time between TERM and KILL when the command is ended (default 5s)")
	cmd.Flags().StringVar(&f.outputLimit, "output-limit", "",
		"keep at most this many `bytes` each of stdout and stderr (default 256MiB)")
	cmd.Flags().BoolVarP(&f.stdin, "stdin", "i", false, "pass stdin to the command, at most 128 KiB")
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
	if f.stdin {
		if spec.Stdin, err = io.ReadAll(io.LimitReader(stdin, protocol.MaxStdin+1)); err != nil {
			return nil, fmt.Errorf("read stdin: %w", err)
		}
		if len(spec.Stdin) > protocol.MaxStdin {
			return nil, usage("--stdin: stdin has more than %s, the most that a command gets; copy a file with --copy of "+
				"`boxfleet run` or `boxfleet sandbox create` instead", protocol.Bytes(protocol.MaxStdin))
		}
	}
	return spec, nil
}
