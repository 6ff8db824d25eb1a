package conformance

import (
	"fmt"
	"strings"
	"sync"

	"github.com/boxfleet/boxfleet/sdk/environment"
)

// each runs n calls concurrently, and fails with the first failure.
func (p *probe) each(n int, call func(i int)) {
	var wait sync.WaitGroup
	failures := make(chan any, n)
	for i := range n {
		wait.Go(func() {
			defer func() {
				if why := recover(); why != nil {
					failures <- why
				}
			}()
			call(i)
		})
	}
	wait.Wait()
	if len(failures) > 0 {
		panic(<-failures)
	}
}

func atOnce() []Behaviour {
	return []Behaviour{
		row("many commands at once do not see each other's directory and variables", func(p *probe) {
			const dirs = 10
			for i := range dirs {
				p.write(p.path(fmt.Sprintf("d%d/name", i)), fmt.Sprint(i))
			}
			p.each(p.many(100), func(i int) {
				dir := p.path(fmt.Sprintf("d%d", i%dirs))
				want := fmt.Sprintf("%s\n%d\nvalue %d\n", dir, i%dirs, i)
				p.prints(want, `pwd; cat name; echo; echo "$VALUE"`,
					environment.Options{Dir: dir, Env: map[string]string{"VALUE": fmt.Sprintf("value %d", i)}})
			})
		}),
		row("twenty codes at once do not see each other", func(p *probe) {
			p.each(p.many(20), func(i int) {
				r := p.codeOf("sh", fmt.Sprintf("x=%d; echo $x >&2; echo $x; exit %d", i, i), plain)
				p.exits(r, i)
				p.same("stdout", r.Stdout, fmt.Sprintf("%d\n", i))
				p.same("stderr", r.Stderr, fmt.Sprintf("%d\n", i))
			})
		}),
		row("the outputs of commands at once are not mixed", func(p *probe) {
			p.each(10, func(i int) {
				p.prints(strings.Repeat(fmt.Sprintf("line %d\n", i), 2000),
					fmt.Sprintf("i=0; while [ $i -lt 2000 ]; do echo line %d; i=$((i+1)); done", i), plain)
			})
		}, environment.POSIX),
	}
}

func filesAtOnce() []Behaviour {
	return []Behaviour{
		row("files that are written at once are complete", func(p *probe) {
			p.each(p.many(20), func(i int) {
				file := p.path(fmt.Sprintf("f%d", i))
				p.write(file, content(10000+i))
				p.holds(file, content(10000+i))
			})
		}),
		row("of several writes to one file, one wins as a whole", func(p *probe) {
			p.each(10, func(i int) { p.write(p.path("file"), strings.Repeat(fmt.Sprint(i), 150<<10)) })
			got, err := p.env.ReadFile(p.ctx, p.path("file"))
			if err != nil {
				p.fail("%w", err)
			}
			p.same("the file", got, strings.Repeat(string(got[:1]), 150<<10))
			p.lists(p.dir, "file")
		}),
		row("a reader sees the old content or the new one", func(p *probe) {
			old, replaced := strings.Repeat("o", 200<<10), strings.Repeat("n", 200<<10)
			p.write(p.path("file"), old)
			p.each(9, func(i int) {
				if i == 0 {
					p.write(p.path("file"), replaced)
					return
				}
				got, err := p.env.ReadFile(p.ctx, p.path("file"))
				if err != nil {
					p.fail("%w", err)
				}
				if text := string(got); text != old && text != replaced {
					p.fail("read %d bytes, neither the old content nor the new one", len(text))
				}
			})
			p.holds(p.path("file"), replaced)
		}),
		row("a timeout of one command does not end another", func(p *probe) {
			p.each(2, func(i int) {
				if i == 0 {
					p.late("sleep 30", plain)
					return
				}
				p.prints("end\n", "sleep 2; echo end", plain)
			})
		}),
	}
}
