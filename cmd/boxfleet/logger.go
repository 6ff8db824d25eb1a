package main

import (
	"io"
	"log/slog"
	"os"

	"github.com/spf13/cobra"

	"github.com/boxfleet/boxfleet/seldom"
)

// load reads the configuration of a command, and sets the default logger of the process, which writes to log.
func (c *config) load(cmd *cobra.Command, log io.Writer) error {
	if err := c.read(cmd); err != nil {
		return err
	}
	c.setLogger(log)
	if unknown := c.unknownEnv(os.Environ()); len(unknown) > 0 && roleOf(cmd) == roleServer {
		slog.Warn("the environment has unknown BOXFLEET_ variables", "unknown", unknown)
	}
	return nil
}

// setLogger sets the default logger of the process to the configured level, without credentials in its lines.
func (c *config) setLogger(log io.Writer) {
	var level slog.Level
	_ = level.UnmarshalText([]byte(c.LogLevel)) // oneOf has checked c.LogLevel
	slog.SetDefault(slog.New(seldom.New(slog.NewTextHandler(log,
		&slog.HandlerOptions{Level: level, ReplaceAttr: c.redactedAttr()}))))
}
