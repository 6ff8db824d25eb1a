package environment

import (
	"context"
	"errors"
	"iter"
	"unicode/utf8"
)

// Execute runs a command and collects what it prints, up to [MaxOutput] bytes of each stream. Errors are those of
// [Environment.ExecuteStreaming]. With an error, the result holds the output before the error, with [UnknownExitCode];
// a *[TimeoutError] holds the same result.
func Execute(ctx context.Context, env Environment, command string, o Options) (*Result, error) {
	return Collect(env.ExecuteStreaming(ctx, command, o))
}

// ExecuteCode runs code and collects what it prints; see [Execute].
func ExecuteCode(ctx context.Context, env Environment, language, code string, o Options) (*Result, error) {
	return Collect(env.ExecuteCodeStreaming(ctx, language, code, o))
}

// Collect reads a sequence of an [Environment] to its end, as [Execute] does.
func Collect(events iter.Seq2[Event, error]) (*Result, error) {
	collected := Result{ExitCode: UnknownExitCode}
	for e, err := range events {
		switch {
		case err != nil:
			var late *TimeoutError
			if errors.As(err, &late) {
				err = &TimeoutError{After: late.After, Result: &collected}
			}
			return &collected, err
		case e.Result != nil:
			collected.ExitCode, collected.Files = e.Result.ExitCode, e.Result.Files
			collected.Truncated = collected.Truncated || e.Result.Truncated
			return &collected, nil
		case e.Stream == Stderr:
			collected.Stderr = collected.keep(collected.Stderr, e.Data)
		default:
			collected.Stdout = collected.keep(collected.Stdout, e.Data)
		}
	}
	return &collected, Errorf(Garbled, "the environment ended the output without a result")
}

// keep appends data up to the limit.
func (r *Result) keep(kept, data []byte) []byte {
	if room := MaxOutput - len(kept); len(data) > room {
		r.Truncated = true
		data = data[:room]
	}
	return append(kept, data...)
}

// ReadText reads a file that must be valid UTF-8. Errors are those of [Environment.ReadFile], and ErrGarbled for
// another encoding.
func ReadText(ctx context.Context, env Environment, path string) (string, error) {
	content, err := env.ReadFile(ctx, path)
	if err != nil {
		return "", err
	}
	if !utf8.Valid(content) {
		return "", Errorf(Garbled, "%s is not valid UTF-8; use ReadFile", path)
	}
	return string(content), nil
}

// WriteText writes a text to a file; see [Environment.WriteFile].
func WriteText(ctx context.Context, env Environment, path, text string) error {
	return env.WriteFile(ctx, path, []byte(text))
}

// Fail returns a sequence that yields one error and nothing else. It is meant for implementations.
func Fail(err error) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) { yield(Event{}, err) }
}
