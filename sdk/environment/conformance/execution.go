package conformance

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/boxfleet/boxfleet/sdk/environment"
)

// octal returns a command that prints bytes.
func octal(text string) string {
	var b strings.Builder
	for i := range len(text) {
		fmt.Fprintf(&b, `\%03o`, text[i])
	}
	return "printf '" + b.String() + "'"
}

func output() []Behaviour {
	every := make([]byte, 256)
	for i := range every {
		every[i] = byte(i)
	}
	var rows []Behaviour
	for _, o := range []struct{ name, text string }{
		{"every byte", string(every)}, {"NUL", "\x00"}, {"bytes that are not UTF-8", "\xff\xfe\x80 ok \xc3"},
		{"CR LF", "a\r\nb\r\n"}, {"only newlines", "\n\n\n"}, {"text like the marks of this module",
			"boxfleet-\nboxfleet-0123456789abcdef0123456789abcdef 0\nboxfleet-0123456789abcdef0123456789abcde"},
	} {
		rows = append(rows,
			row("stdout carries "+o.name, func(p *probe) { p.prints(o.text, octal(o.text), plain) }),
			row("stderr carries "+o.name, func(p *probe) {
				r := p.run(octal(o.text)+" >&2", plain)
				p.same("stderr", r.Stderr, o.text)
				p.same("stdout", r.Stdout, "")
			}))
	}
	const mib = 1 << 20
	return append(rows,
		row("a character that arrives in two parts is not changed", func(p *probe) {
			p.prints("é", `printf '\303'; sleep 0.2; printf '\251'`, plain)
		}),
		row("5 MiB of output are complete", func(p *probe) {
			r := p.run("yes 0123456789abcdef | head -c 5242880", plain)
			p.same("stdout", r.Stdout, strings.Repeat("0123456789abcdef\n", 5*mib/17+1)[:5*mib])
		}, environment.POSIX),
		row("much output to both streams at once is complete", func(p *probe) {
			r := p.run("yes out | head -c 1048576 & yes err | head -c 1048576 >&2; wait", plain)
			p.same("stdout", r.Stdout, strings.Repeat("out\n", mib/4))
			p.same("stderr", r.Stderr, strings.Repeat("err\n", mib/4))
		}, environment.POSIX),
		row("output beyond the limit of a result is dropped and marked", func(p *probe) {
			r := p.run(fmt.Sprintf("yes | head -c %d; exit 3", environment.MaxOutput+mib), plain)
			p.exits(r, 3)
			if len(r.Stdout) != environment.MaxOutput || !r.Truncated {
				p.fail("%d bytes, truncated %v", len(r.Stdout), r.Truncated)
			}
		}, environment.POSIX),
		row("output of a short command is not marked as cut", func(p *probe) {
			if r := p.run("echo a", plain); r.Truncated {
				p.fail("the result is marked as truncated")
			}
		}),
	)
}

func streaming() []Behaviour {
	return []Behaviour{
		row("a sequence ends with exactly one result", func(p *probe) {
			results, chunks := 0, 0
			for e, err := range p.env.ExecuteStreaming(p.ctx, "echo a; echo b >&2", plain) {
				switch {
				case err != nil:
					p.fail("%w", err)
				case results > 0:
					p.fail("an event after the result")
				case e.Result != nil:
					results++
				case len(e.Data) == 0 || e.Stream != environment.Stdout && e.Stream != environment.Stderr:
					p.fail("a chunk of %d bytes of %q", len(e.Data), e.Stream)
				default:
					chunks++
				}
			}
			if results != 1 || chunks < 2 {
				p.fail("%d results, %d chunks", results, chunks)
			}
		}),
		row("chunks arrive while the command runs", func(p *probe) {
			flag := p.path("flag")
			p.makeDir()
			// The command ends when the file exists, and the file is written when the first chunk has arrived.
			seen := false
			for e, err := range p.env.ExecuteStreaming(p.ctx, "echo first; until test -e "+environment.Quote(flag)+
				"; do sleep 0.05; done; echo last", environment.Options{Timeout: 20 * time.Second}) {
				if err != nil {
					p.fail("%w", err)
				}
				if !seen && e.Stream == environment.Stdout {
					seen = true
					p.write(flag, "")
				}
			}
		}, environment.POSIX),
		row("nothing runs before the sequence is read", func(p *probe) {
			p.makeDir()
			_ = p.env.ExecuteStreaming(p.ctx, "echo x >file", environment.Options{Dir: p.dir}) // nothing may run
			p.run("true", plain)
			_, err := p.env.ReadFile(p.ctx, p.path("file"))
			p.refused(err, environment.ErrNotFound)
		}),
		row("the chunks belong to the receiver", func(p *probe) {
			var kept [][]byte
			for e, err := range p.env.ExecuteStreaming(p.ctx, "echo aaaa; sleep 0.1; echo bbbb", plain) {
				if err != nil {
					p.fail("%w", err)
				}
				kept = append(kept, e.Data)
			}
			p.same("all chunks", bytes.Join(kept, nil), "aaaa\nbbbb\n")
		}),
	}
}

func endedEarly() []Behaviour {
	return []Behaviour{
		row("leaving the loop ends the command", func(p *probe) {
			p.makeDir()
			for e, err := range p.env.ExecuteStreaming(p.ctx, "echo begun; "+beats(p.path("beat")), plain) {
				if err != nil {
					p.fail("%w", err)
				}
				if e.Stream == environment.Stdout {
					p.eventually("the command writes", func() bool { return p.exists("beat") })
					break
				}
			}
			p.stopped(p.path("beat"))
		}, environment.POSIX),
		row("the end of the context ends the command", func(p *probe) {
			p.makeDir()
			ctx, cancel := context.WithCancel(p.ctx)
			defer cancel()
			var last error
			for e, err := range p.env.ExecuteStreaming(ctx, "echo begun; "+beats(p.path("beat")), plain) {
				last = err
				if e.Stream == environment.Stdout {
					p.eventually("the command writes", func() bool { return p.exists("beat") })
					cancel()
				}
			}
			p.refused(last, environment.ErrCancelled)
			if !errors.Is(last, context.Canceled) {
				p.fail("%v does not match context.Canceled", last)
			}
			p.stopped(p.path("beat"))
		}, environment.POSIX),
		row("nothing runs if the context has ended before", func(p *probe) {
			ctx, cancel := context.WithCancel(p.ctx)
			cancel()
			p.makeDir()
			_, err := environment.Execute(ctx, p.env, "echo x >file", environment.Options{Dir: p.dir})
			p.refused(err, environment.ErrCancelled)
			_, err = p.env.ReadFile(p.ctx, p.path("file"))
			p.refused(err, environment.ErrNotFound)
		}),
		row("a bad option is the error of the sequence", func(p *probe) {
			n := 0
			for _, err := range p.env.ExecuteStreaming(p.ctx, "echo ran", environment.Options{Timeout: -1}) {
				n++
				p.names(err, "timeout")
			}
			if n != 1 {
				p.fail("%d events", n)
			}
		}),
	}
}

// exists reports whether a file below the directory of the check exists.
func (p *probe) exists(name string) bool {
	_, err := p.env.ReadFile(p.ctx, p.path(name))
	return err == nil
}

// late runs a command that must exceed a timeout of a second.
func (p *probe) late(command string, o environment.Options) *environment.TimeoutError {
	const enough = 15 * time.Second
	o.Timeout = time.Second
	began := time.Now()
	_, err := environment.Execute(p.ctx, p.env, command, o)
	took := time.Since(began)
	var late *environment.TimeoutError
	if !errors.As(err, &late) {
		p.fail("got %v after %v, want a timeout", err, took)
	}
	p.refused(err, environment.ErrTimeout)
	if late.After != o.Timeout || late.Result == nil || late.Result.ExitCode != environment.UnknownExitCode {
		p.fail("after %v, result %+v", late.After, late.Result)
	}
	if took < o.Timeout || took > enough {
		p.fail("it took %v", took)
	}
	return late
}

// kills makes a row that checks that a timeout ends a process that writes to a file.
func kills(what, command string) Behaviour {
	return row("a timeout ends "+what, func(p *probe) {
		p.makeDir()
		p.late(strings.ReplaceAll(command, "BEAT", beats(p.path("beat"))), plain)
		if !p.exists("beat") {
			p.fail("the process did not run before the timeout")
		}
		p.stopped(p.path("beat"))
	}, environment.POSIX)
}

func timeouts() []Behaviour {
	return []Behaviour{
		row("a timeout keeps what was printed", func(p *probe) {
			late := p.late("echo out; echo err >&2; sleep 30", plain)
			p.same("stdout", late.Result.Stdout, "out\n")
			if !strings.Contains(string(late.Result.Stderr), "err\n") {
				p.fail("stderr is %q", late.Result.Stderr)
			}
		}),
		row("output does not reset the timeout", func(p *probe) {
			if late := p.late("while :; do echo tick; sleep 0.1; done", plain); len(late.Result.Stdout) == 0 {
				p.fail("nothing was kept")
			}
		}, environment.POSIX),
		row("a timeout ends a command that prints without end", func(p *probe) {
			if late := p.late("yes", plain); len(late.Result.Stdout) == 0 {
				p.fail("nothing was kept")
			}
		}, environment.POSIX),
		kills("the command", "BEAT"),
		kills("a command that ignores TERM", "trap '' TERM; BEAT"),
		kills("processes in the background", "BEAT & sleep 30"),
		kills("a process that leaves the shell alone", "(BEAT & ) ; sleep 30"),
		row("a timeout ends processes of processes", func(p *probe) {
			p.write(p.path("loop"), beats(p.path("beat")))
			p.late("sh -c 'sh -c \"sh loop & wait\" & wait' & sleep 30", environment.Options{Dir: p.dir})
			p.stopped(p.path("beat"))
		}, environment.POSIX),
		row("a timeout ends a process in a session of its own", func(p *probe) {
			p.has("setsid")
			p.makeDir()
			p.late("echo "+environment.Quote(beats(p.path("beat")))+" >loop; setsid sh loop & sleep 30",
				environment.Options{Dir: p.dir})
			p.stopped(p.path("beat"))
		}, environment.POSIX),
		row("the environment works after a timeout", func(p *probe) {
			p.late("sleep 30", plain)
			p.prints("works\n", "echo works", plain)
		}),
		row("a command that is faster than its timeout succeeds", func(p *probe) {
			p.prints("fast\n", "echo fast", environment.Options{Timeout: 30 * time.Second})
		}),
		row("a timeout ends code", func(p *probe) {
			_, err := environment.ExecuteCode(p.ctx, p.env, "sh", "echo begun; sleep 30",
				environment.Options{Timeout: time.Second})
			p.refused(err, environment.ErrTimeout)
			var late *environment.TimeoutError
			if errors.As(err, &late) {
				p.same("stdout", late.Result.Stdout, "begun\n")
			}
		}),
		row("a negative timeout is refused", func(p *probe) {
			_, err := environment.Execute(p.ctx, p.env, "echo ran", environment.Options{Timeout: -time.Second})
			p.names(err, "timeout")
		}),
	}
}

// codeOf runs code that must end by itself.
func (p *probe) codeOf(language, text string, o environment.Options) *environment.Result {
	r, err := environment.ExecuteCode(p.ctx, p.env, language, text, o)
	if err != nil {
		p.fail("%w", err)
	}
	return r
}

func code() []Behaviour {
	var rows []Behaviour
	for _, language := range []string{"", "python\n", "\npython", "-c", "a/b", "..", "$(id)", "a;b", "é", "sh\x00"} {
		rows = append(rows, row("the language "+slug(language)+" is refused", func(p *probe) {
			_, err := environment.ExecuteCode(p.ctx, p.env, language, "echo ran", plain)
			p.names(err, "language")
		}))
	}
	for _, language := range []string{"no-such-language", "export", "until"} {
		rows = append(rows, row("there is no language "+language, func(p *probe) {
			_, err := environment.ExecuteCode(p.ctx, p.env, language, "echo ran", plain)
			p.refused(err, environment.ErrNoLanguage)
		}))
	}
	for i, h := range hostileTexts {
		if h.text == "" || i%2 == 0 { // a file carries each of them
			continue
		}
		rows = append(rows, row("code that contains "+h.name+" arrives unchanged", func(p *probe) {
			p.makeDir()
			// The code is a shell script that prints its text from a single-quoted word.
			script := "printf '%s' " + environment.Quote(h.text)
			p.same("stdout", p.codeOf("sh", script, plain).Stdout, h.text)
		}))
	}
	for _, kib := range []int{96, 97, 128, 256} {
		rows = append(rows, row(fmt.Sprintf("code of %d KiB runs", kib), func(p *probe) {
			text := strings.Repeat("# a comment of sixteen bytes, twice\n", kib<<10/36) + "echo end"
			p.same("stdout", p.codeOf("sh", text, plain).Stdout, "end\n")
		}))
	}
	return append(rows, languages()...)
}

func languages() []Behaviour {
	return []Behaviour{
		row("sh is a language, and its exit code is returned", func(p *probe) {
			r := p.codeOf("sh", "echo out; echo err >&2; exit 4", plain)
			p.exits(r, 4)
			p.same("stdout", r.Stdout, "out\n")
			p.same("stderr", r.Stderr, "err\n")
		}),
		row("empty code succeeds", func(p *probe) { p.exits(p.codeOf("sh", "", plain), 0) }),
		row("code that is too long is refused", func(p *probe) {
			_, err := environment.ExecuteCode(p.ctx, p.env, "sh", strings.Repeat("#", environment.MaxCode+1), plain)
			p.names(err, "code")
		}),
		row("variables of code end with it", func(p *probe) {
			p.codeOf("sh", "export KEPT=1", plain)
			p.same("stdout", p.codeOf("sh", `echo "<$KEPT>"`, plain).Stdout, "<>\n")
		}),
		row("Python code runs", func(p *probe) {
			p.language("python")
			r := p.codeOf("python", "import sys\nprint('it\\'s', 1 + 1)\nsys.exit(5)", plain)
			p.exits(r, 5)
			p.same("stdout", r.Stdout, "it's 2\n")
		}, environment.POSIX),
		row("an exception in Python code is a result", func(p *probe) {
			p.language("python")
			r := p.codeOf("python", "raise ValueError('no')", plain)
			p.exits(r, 1)
			if !strings.Contains(string(r.Stderr), "ValueError: no") {
				p.fail("stderr is %q", r.Stderr)
			}
		}, environment.POSIX),
		row("JavaScript code runs", func(p *probe) {
			p.language("javascript")
			p.same("stdout", p.codeOf("javascript", "console.log(`${1 + 1}`)", plain).Stdout, "2\n")
		}, environment.POSIX),
	}
}
