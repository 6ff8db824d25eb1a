package conformance

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"iter"
	"path"
	"slices"
	"sync"
	"time"

	"github.com/boxfleet/boxfleet/sdk/environment"
)

// Behaviour is one row of the table.
type Behaviour struct {
	Group string
	Name  string // what the environment does, as a sentence
	Needs []environment.Capability
	check func(p *probe)
}

// State is the outcome of a check.
type State string

// The states.
const (
	Passed  State = "pass"
	Failed  State = "fail"
	Missing State = "missing" // the environment cannot do this, and says so
)

// Outcome is the outcome of one behaviour.
type Outcome struct {
	Behaviour
	State State
	Err   error         // why it failed, or what is missing
	Took  time.Duration // how long the check took
}

// Options says how the table is run.
type Options struct {
	Dir   string        // directory of the environment to work below, absolute; default: /tmp
	Limit time.Duration // time limit of one behaviour; default: 1 minute
	// Sample checks only every n-th behaviour of the groups that try many values, and makes fewer calls at once.
	// Default: 1, all.
	Sample   int
	Parallel int // checks that run at once; default: 16. The group "at once" always runs alone
}

const (
	defaultLimit    = time.Minute
	defaultParallel = 16
)

// groups lists the parts of the table, in the order in which they are run.
var groups = []struct {
	name  string
	alone bool // its checks measure time, or run many commands at once
	many  bool // its rows differ in the values that they try
	rows  func() []Behaviour
}{
	{"description", false, false, description},
	{"commands", false, true, commands},
	{"directory", false, true, directories},
	{"variables", false, true, variables},
	{"user", false, false, users},
	{"output", false, true, output},
	{"streaming", false, false, func() []Behaviour { return append(streaming(), endedEarly()...) }},
	{"timeouts", false, false, timeouts},
	{"code", false, true, code},
	{"content", false, true, contents},
	{"paths", false, true, paths},
	{"files", false, false, files},
	{"permissions", false, false, permissions},
	{"streams", false, false, streams},
	{"ports", false, false, ports},
	{"at once", true, false, func() []Behaviour { return append(atOnce(), filesAtOnce()...) }},
}

// Behaviours returns the table.
func Behaviours() []Behaviour {
	var all []Behaviour
	for _, g := range groups {
		for _, b := range g.rows() {
			b.Group = g.name
			all = append(all, b)
		}
	}
	return all
}

// Run checks every behaviour, and yields the outcomes in the order of the table. It ends early when ctx ends.
func Run(ctx context.Context, env environment.Environment, o Options) iter.Seq[Outcome] {
	if o.Dir == "" {
		o.Dir = "/tmp"
	}
	if o.Limit == 0 {
		o.Limit = defaultLimit
	}
	if o.Parallel == 0 {
		o.Parallel = defaultParallel
	}
	r := &run{env: env, options: o, dir: path.Join(o.Dir, "conformance-"+word())}
	return func(yield func(Outcome) bool) {
		defer r.clean(ctx)
		for _, g := range groups {
			rows := g.rows()
			if g.many {
				rows = sample(rows, o.Sample)
			}
			for i := range rows {
				rows[i].Group = g.name
			}
			limit := o.Parallel
			if g.alone {
				limit = 1
			}
			for _, outcome := range r.all(ctx, rows, limit) {
				if ctx.Err() != nil || !yield(outcome) {
					return
				}
			}
		}
	}
}

// sample returns every n-th row.
func sample(rows []Behaviour, n int) (some []Behaviour) {
	for i := 0; i < len(rows); i += max(n, 1) {
		some = append(some, rows[i])
	}
	return some
}

// Check checks one behaviour in a directory of its own.
func Check(ctx context.Context, env environment.Environment, b Behaviour, o Options) Outcome {
	if o.Dir == "" {
		o.Dir = "/tmp"
	}
	if o.Limit == 0 {
		o.Limit = defaultLimit
	}
	r := &run{env: env, options: o, dir: path.Join(o.Dir, "conformance-"+word())}
	defer r.clean(ctx)
	return r.one(ctx, b)
}

// run is one run of the table.
type run struct {
	env     environment.Environment
	options Options
	dir     string
}

// all checks behaviours, some at once, and returns their outcomes in order.
func (r *run) all(ctx context.Context, rows []Behaviour, limit int) []Outcome {
	outcomes := make([]Outcome, len(rows))
	slots := make(chan struct{}, limit)
	var wait sync.WaitGroup
	for i, b := range rows {
		slots <- struct{}{}
		wait.Go(func() {
			defer func() { <-slots }()
			outcomes[i] = r.one(ctx, b)
		})
	}
	wait.Wait()
	return outcomes
}

func (r *run) one(ctx context.Context, b Behaviour) (o Outcome) {
	o = Outcome{Behaviour: b, State: Passed}
	for _, c := range b.Needs {
		if !r.env.Describe().Has(c) {
			o.State, o.Err = Missing, fmt.Errorf("no capability %s", c)
			return o
		}
	}
	ctx, cancel := context.WithTimeout(ctx, r.options.Limit)
	defer cancel()
	p := &probe{ctx: ctx, env: r.env, dir: path.Join(r.dir, word()), sample: r.options.Sample}
	began := time.Now()
	defer func() {
		o.Took = time.Since(began)
		switch why := recover().(type) {
		case nil:
		case failure:
			o.State, o.Err = Failed, why.error
		case absent:
			o.State, o.Err = Missing, why.error
		default:
			panic(why)
		}
	}()
	b.check(p)
	return o
}

// cleanTime bounds how long removing the files of a run takes.
const cleanTime = 30 * time.Second

// clean removes what the checks left.
func (r *run) clean(ctx context.Context) {
	if !r.env.Describe().Has(environment.POSIX) {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanTime)
	defer cancel()
	dir := environment.Quote(r.dir)
	// The outcomes do not depend on it, so an error is not reported.
	_, _ = environment.Execute(ctx, r.env, "chmod -R u+rwx "+dir+" 2>/dev/null; rm -rf "+dir, environment.Options{})
}

// word returns a random word.
func word() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// row makes one row of the table.
func row(name string, check func(p *probe), needs ...environment.Capability) Behaviour {
	return Behaviour{Name: name, Needs: slices.Clone(needs), check: check}
}
