package conformance

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/boxfleet/boxfleet/sdk/environment"
)

var plain = environment.Options{}

func description() []Behaviour {
	return []Behaviour{
		row("the backend has a name", func(p *probe) {
			if p.env.Describe().Backend == "" {
				p.fail("Backend is empty")
			}
		}),
		row("the isolation is stated", func(p *probe) {
			if p.env.Describe().Isolation == "" {
				p.fail("Isolation is empty; a backend that cannot tell says %q", environment.IsolationUnknown)
			}
		}),
		row("an environment without isolation is not called a sandbox", func(p *probe) {
			d := p.env.Describe()
			if d.Isolation == environment.IsolationNone && strings.Contains(strings.ToLower(d.Backend), "sandbox") {
				p.fail("the backend is named %q", d.Backend)
			}
		}),
		row("the description is always the same", func(p *probe) {
			if a, b := p.env.Describe(), p.env.Describe(); fmt.Sprint(a) != fmt.Sprint(b) {
				p.fail("%v, then %v", a, b)
			}
		}),
		row("no capability is listed twice", func(p *probe) {
			c := slices.Sorted(slices.Values(p.env.Describe().Capabilities))
			if len(slices.Compact(slices.Clone(c))) != len(c) {
				p.fail("%v", c)
			}
		}),
		row("the capability streams and the interface Streamer agree", func(p *probe) {
			if _, ok := p.env.(environment.Streamer); ok != p.env.Describe().Has(environment.Streams) {
				p.fail("it is a Streamer: %v", ok)
			}
		}),
		row("the capability ports and the interface Dialer agree", func(p *probe) {
			if _, ok := p.env.(environment.Dialer); ok != p.env.Describe().Has(environment.Ports) {
				p.fail("it is a Dialer: %v", ok)
			}
		}),
	}
}

func commands() []Behaviour {
	var rows []Behaviour
	for _, code := range []int{0, 1, 2, 7, 64, 81, 100, 125, 126, 127, 128, 255} {
		rows = append(rows, row(fmt.Sprintf("exit code %d is returned", code), func(p *probe) {
			p.exits(p.run(fmt.Sprintf("exit %d", code), plain), code)
		}))
	}
	rows = append(rows,
		row("stdout and stderr stay apart", func(p *probe) {
			r := p.run("echo out; echo err >&2; exit 3", plain)
			p.exits(r, 3)
			p.same("stdout", r.Stdout, "out\n")
			p.same("stderr", r.Stderr, "err\n")
		}),
		row("a command that prints nothing has empty output", func(p *probe) {
			r := p.run("true", plain)
			p.exits(r, 0)
			p.same("stdout", r.Stdout, "")
			p.same("stderr", r.Stderr, "")
		}),
		row("output without a newline at its end is complete", func(p *probe) {
			p.prints("no end", "printf 'no end'", plain)
		}),
		row("lines of a command run one after another", func(p *probe) {
			p.prints("a\nb\nc\n", "echo a\necho b\necho c", plain)
		}),
		row("&& and || work", func(p *probe) { p.prints("yes\nno\n", "true && echo yes; false || echo no", plain) }),
		row("quotes are the shell's", func(p *probe) { p.prints("$HOME 'x' \"y\"\n", `echo '$HOME '"'x'"' "y"'`, plain) }),
		row("a missing program is 127 with a message", func(p *probe) {
			r := p.run("no-such-program-"+word(), plain)
			p.exits(r, 127)
			if len(r.Stderr) == 0 {
				p.fail("stderr is empty")
			}
		}),
		row("an empty command is refused", func(p *probe) {
			_, err := environment.Execute(p.ctx, p.env, " \n", plain)
			p.names(err, "command")
		}),
		row("a command with NUL is refused", func(p *probe) {
			_, err := environment.Execute(p.ctx, p.env, "echo a\x00b", plain)
			p.names(err, "command")
		}),
		row("a command that is too long is refused", func(p *probe) {
			_, err := environment.Execute(p.ctx, p.env, ": "+strings.Repeat("a", environment.MaxCommand), plain)
			p.names(err, "command")
		}),
		row("a command of the greatest length runs", func(p *probe) {
			p.prints("end\n", ": "+strings.Repeat("a", environment.MaxCommand-12)+"\necho end", plain)
		}, environment.POSIX),
	)
	return append(append(rows, shellCommands()...), stateless()...)
}

func shellCommands() []Behaviour {
	var rows []Behaviour
	for _, c := range []struct{ name, command, want string }{
		{"a pipe works", "echo abc | tr a-c A-C", "ABC\n"},
		{"a command substitution works", `echo "<$(echo in)>"`, "<in>\n"},
		{"a here-document works", "cat <<'EOF'\n$x `y`\nEOF\necho after", "$x `y`\nafter\n"},
		{"a here-document at the end works", "cat <<EOF\nlast\nEOF", "last\n"},
		{"a function works", "f() { echo \"$1\"; }\nf x", "x\n"},
		{"a loop works", "for i in 1 2 3; do printf $i; done", "123"},
		{"a comment at the end is no problem", "echo a # comment", "a\n"},
		{"a command of a comment alone succeeds", "# nothing", ""},
		{"newlines around a command are no problem", "\n\necho a\n\n", "a\n"},
		{"a backslash is the shell's", "printf '%s' 'a\\b' \"c\\\\d\"", "a\\bc\\d"},
		{"unicode in a command works", "echo 'é 日本 🎈'", "é 日本 🎈\n"},
		{"exec replaces the shell", "exec echo replaced; echo not", "replaced\n"},
		{"standard input is empty", "cat; echo end", "end\n"},
		{"reading a line of standard input fails", "read x || echo none", "none\n"},
		{"the process id is that of the shell", "sh -c 'echo $PPID' >/dev/null; kill -0 $$ && echo alive", "alive\n"},
		{"text in braces is no problem", "echo '}'; echo ')'; echo '{'", "}\n)\n{\n"},
		{"exit in a subshell ends the subshell", "(exit 3); echo $?", "3\n"},
		{"a trap runs at the end", "trap 'echo bye' EXIT; echo hi", "hi\nbye\n"},
	} {
		rows = append(rows, row(c.name, func(p *probe) { p.prints(c.want, c.command, plain) }, environment.POSIX))
	}
	for _, signal := range []struct {
		name string
		code int
	}{{"KILL", 137}, {"TERM", 143}, {"SEGV", 139}} {
		rows = append(rows, row(fmt.Sprintf("a program that %s ends has exit code %d", signal.name, signal.code),
			func(p *probe) { p.exits(p.run("sh -c 'kill -"+signal.name+" $$'", plain), signal.code) }, environment.POSIX))
	}
	return append(rows,
		row("a shell that kills itself has exit code 137", func(p *probe) { p.exits(p.run("kill -KILL $$", plain), 137) },
			environment.POSIX),
		row("a syntax error is a result, not an error", func(p *probe) {
			if r := p.run("echo 'not closed", plain); r.ExitCode == 0 || len(r.Stderr) == 0 {
				p.fail("exit code %d, stderr %q", r.ExitCode, r.Stderr)
			}
		}, environment.POSIX),
		row("a process in the background does not delay the result", func(p *probe) {
			const limit = 5 * time.Second
			began := time.Now()
			p.prints("started\n", "sleep 20 & echo started", plain)
			if took := time.Since(began); took > limit {
				p.fail("it took %v", took)
			}
		}, environment.POSIX),
	)
}

func stateless() []Behaviour {
	both := func(first, second, want string) func(p *probe) {
		return func(p *probe) {
			p.exits(p.run(first, plain), 0)
			p.prints(want, second, plain)
		}
	}
	return []Behaviour{
		row("cd ends with the command", func(p *probe) {
			before := p.run("pwd", plain)
			p.exits(p.run("cd / && pwd", plain), 0)
			p.prints(string(before.Stdout), "pwd", plain)
		}),
		row("export ends with the command", both("export KEPT=1", `echo "<$KEPT>"`, "<>\n")),
		row("a function ends with the command", both("f() { echo x; }", "f 2>/dev/null || echo none", "none\n"),
			environment.POSIX),
		row("umask ends with the command", func(p *probe) {
			before := p.run("umask", plain)
			p.exits(p.run("umask 077", plain), 0)
			p.prints(string(before.Stdout), "umask", plain)
		}, environment.POSIX),
		row("files of one command are there for the next", func(p *probe) {
			p.makeDir()
			p.exits(p.run("echo kept >file", environment.Options{Dir: p.dir}), 0)
			p.prints("kept\n", "cat file", environment.Options{Dir: p.dir})
		}),
	}
}

// hostileNames are names of files and directories that a shell or a tool may misread.
var hostileNames = []string{
	"plain", "  with spaces  ", "-rf", "-", "it's", `double"quote`, "`id`", "$(id)", "$HOME", "a;b&c|d>e", "*", "?[a]",
	"~", "#hash", "back\\slash", "tab\there", "\nnew\nline", "newline last\n", "a\r\nb", "é 日本語 🎈 e\u0301", "%s%n",
	"!{a,b}",
	"'; echo x; '", "...", ".hidden", "a=b", "\x01\x7f",
}

func directories() []Behaviour {
	rows := []Behaviour{
		row("an absolute directory is used", func(p *probe) {
			p.makeDir()
			p.prints(p.dir+"\n", "pwd", environment.Options{Dir: p.dir})
		}),
		row("a directory that does not exist is not found", func(p *probe) {
			_, err := environment.Execute(p.ctx, p.env, "echo ran", environment.Options{Dir: p.path("none")})
			p.refused(err, environment.ErrNotFound)
		}),
		row("a directory that is a file is refused", func(p *probe) {
			p.write(p.path("file"), "")
			_, err := environment.Execute(p.ctx, p.env, "echo ran", environment.Options{Dir: p.path("file")})
			p.refused(err, environment.ErrNotDirectory)
		}),
		row("a directory with NUL is refused", func(p *probe) {
			_, err := environment.Execute(p.ctx, p.env, "echo ran", environment.Options{Dir: "/a\x00"})
			p.names(err, "dir")
		}),
		row("code runs in the directory", func(p *probe) {
			p.makeDir()
			r, err := environment.ExecuteCode(p.ctx, p.env, "sh", "pwd", environment.Options{Dir: p.dir})
			if err != nil {
				p.fail("%w", err)
			}
			p.same("stdout", r.Stdout, p.dir+"\n")
		}),
	}
	for _, name := range []string{"with space", "-rf", "it's \"quoted\"", "$(id) `id` $HOME", "a;b&c|d>e", "* ? [a] ~",
		"new\nline\n",
		"back\\slash", "日本 🎈"} {
		rows = append(rows, row("commands run in a directory named "+slug(name), func(p *probe) {
			p.write(p.path(name)+"/file", "content")
			p.prints("content", "cat file", environment.Options{Dir: p.path(name)})
		}))
	}
	return rows
}

// hostileTexts are texts that a shell, a here-document or an encoding may change.
var hostileTexts = []struct{ name, text string }{
	{"no bytes", ""}, {"one byte", "x"}, {"a newline", "\n"}, {"newlines at the end", "a\n\n\n"}, {"no newline", "a"},
	{"CR LF", "a\r\nb\r\n"}, {"tabs and spaces", " \t a \t "}, {"single quotes", "it's '' '''"},
	{"double quotes", `"a" ""`},
	{"a command substitution", "$(touch /tmp/x) `id`"},
	{"variables", "$HOME ${HOME} $$ $1 $@"},
	{"backslashes", `\ \\ \n \0 \'`},
	{"EOF", "EOF\nEOF\n"}, {"a line EOF with quotes", "'EOF'\n\"EOF\"\n"}, {"end marks", "end-\nend-0\nEND\n.\n"},
	{"names that this module uses", "boxfleet-\nboxfleet-0 0\nBOXFLEET_SCRIPT=x\n# whole"},
	{"percent signs", "%s %d %% %n"}, {"an exclamation mark", "!! !x"}, {"a leading dash", "-n\n-e x"},
	{"a tilde", "~ ~root"},
	{"globs", "* ? [a-z] {a,b}"}, {"unicode", "é 日本語 🎈 e\u0301 \u200b\ufeff"}, {"shell operators", "; & | < > ( ) && ||"},
	{"escape sequences", "\x1b[31mred\x1b[0m\a\b\f\v\x7f"},
}

func variables() []Behaviour {
	var rows []Behaviour
	for _, h := range hostileTexts {
		rows = append(rows, row("a variable holds "+h.name, func(p *probe) {
			p.prints(h.text, `printf '%s' "$VALUE"`, environment.Options{Env: map[string]string{"VALUE": h.text}})
		}))
	}
	for _, name := range []string{"", "1A", "A B", "A=B", "A\n", "A-B", "A;id", "É", "A.B", "$(id)", "A\x00"} {
		rows = append(rows, row("the name of a variable "+slug(name)+" is refused", func(p *probe) {
			_, err := environment.Execute(p.ctx, p.env, "echo ran", environment.Options{Env: map[string]string{name: "x"}})
			p.names(err, "env."+name)
		}))
	}
	return append(rows,
		row("variables are added to those of the environment", func(p *probe) {
			p.prints("1\nset\n", `echo "$A"; test -n "$PATH" && echo set`, environment.Options{Env: map[string]string{"A": "1"}})
		}),
		row("a hundred variables are set", func(p *probe) {
			env, want := map[string]string{}, ""
			for i := range 100 {
				env[fmt.Sprintf("V%d", i)] = fmt.Sprint(i)
			}
			want = "0 50 99\n"
			p.prints(want, `echo "$V0 $V50 $V99"`, environment.Options{Env: env})
		}),
		row("a value of 60 KiB is set", func(p *probe) {
			value := strings.Repeat("a", 60<<10)
			p.prints(value, `printf '%s' "$VALUE"`, environment.Options{Env: map[string]string{"VALUE": value}})
		}),
		row("a value of 4 KiB of quotes is set", func(p *probe) {
			value := strings.Repeat("'", 4<<10)
			p.prints(value, `printf '%s' "$VALUE"`, environment.Options{Env: map[string]string{"VALUE": value}})
		}),
		row("a value with NUL is refused", func(p *probe) {
			_, err := environment.Execute(p.ctx, p.env, "echo ran", environment.Options{Env: map[string]string{"A": "a\x00"}})
			p.names(err, "env.A")
		}),
		row("too many bytes of variables are refused", func(p *probe) {
			_, err := environment.Execute(p.ctx, p.env, "echo ran", environment.Options{
				Env: map[string]string{"A": strings.Repeat("a", environment.MaxEnvBytes)}})
			p.names(err, "env")
		}),
		row("a program that the command starts has the variables", func(p *probe) {
			p.prints("x\n", `sh -c 'echo "$A"'`, environment.Options{Env: map[string]string{"A": "x"}})
		}, environment.POSIX),
		row("code has the variables", func(p *probe) {
			r, err := environment.ExecuteCode(p.ctx, p.env, "sh", `echo "$A"`, environment.Options{
				Env: map[string]string{"A": "it's"}})
			if err != nil {
				p.fail("%w", err)
			}
			p.same("stdout", r.Stdout, "it's\n")
		}),
	)
}

func users() []Behaviour {
	refuses := func(call func(p *probe, o environment.Options) error) func(p *probe) {
		return func(p *probe) {
			if p.env.Describe().Has(environment.Users) {
				p.missing("it can run commands as another user")
			}
			p.refused(call(p, environment.Options{User: "root"}), environment.ErrUnsupported)
		}
	}
	return []Behaviour{
		row("an environment without the capability refuses the user of a command", refuses(
			func(p *probe, o environment.Options) error {
				_, err := environment.Execute(p.ctx, p.env, "echo ran", o)
				return err
			})),
		row("an environment without the capability refuses the user of code", refuses(
			func(p *probe, o environment.Options) error {
				_, err := environment.ExecuteCode(p.ctx, p.env, "sh", "echo ran", o)
				return err
			})),
		row("a command runs as the user", func(p *probe) {
			p.prints("0\n", "id -u", environment.Options{User: "0"})
		}, environment.Users, environment.POSIX),
		row("a user that does not exist is refused", func(p *probe) {
			_, err := environment.Execute(p.ctx, p.env, "echo ran", environment.Options{User: "no-such-user"})
			p.names(err, "user")
		}, environment.Users),
		row("the name of a user with a space is refused", func(p *probe) {
			_, err := environment.Execute(p.ctx, p.env, "echo ran", environment.Options{User: "a b"})
			p.names(err, "user")
		}),
	}
}
