package hostfiles

import (
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"slices"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/worker/hostdir"
)

// NeedHome reports whether any of the tools has a mount in the home directory of the sandbox's user.
func NeedHome(names []string) bool {
	inHome := func(u toolUse) bool {
		target := findToolMount(u.mount).target
		return target != "" && !path.IsAbs(target)
	}
	return slices.ContainsFunc(names, func(name string) bool {
		t := findTool(name)
		return t != nil && slices.ContainsFunc(t.uses, inHome)
	})
}

// plan chooses the bindings of a spec's tools, and the environment variables that tell programs the paths of the files.
// A mount that several tools share is planned only once. home is the home directory of the sandbox's user. Copies of
// tools' directories are made in the sandbox's directory d.
func (t *Toolbox) plan(spec *protocol.SandboxSpec, home string, d hostdir.Dir) (Bindings, error) {
	p := toolPlan{box: t, spec: spec, home: home, dir: d, planned: map[string]bool{}}
	p.chosen.Env = map[string]string{}
	for i, name := range spec.Tools {
		field := fmt.Sprintf("spec.tools[%d]", i)
		if err := t.check(field, name); err != nil {
			return Bindings{}, err
		}
		for _, use := range findTool(name).uses {
			if err := p.add(field, name, use); err != nil {
				return Bindings{}, err
			}
		}
	}
	return p.chosen, nil
}

// toolPlan is the state of one call of plan.
type toolPlan struct {
	box     *Toolbox
	spec    *protocol.SandboxSpec
	home    string
	dir     hostdir.Dir
	planned map[string]bool // names of the mounts that are planned
	chosen  Bindings
}

// add plans one mount of a tool, unless the mount was planned for another tool before. It leaves out an optional mount
// that the host does not have.
func (p *toolPlan) add(field, tool string, use toolUse) error {
	if p.planned[use.mount] {
		return nil
	}
	m := findToolMount(use.mount)
	b, err := p.bind(field, m)
	if errors.Is(err, errNoTool) || errors.Is(err, errUnverified) {
		if use.required {
			return toolUnavailable(field, "%s needs %s, which the host does not have", tool, use.mount)
		}
		return nil
	}
	if err != nil {
		return err
	}
	if err := checkVacant(p.spec, b); err != nil {
		return err
	}
	p.planned[use.mount], b.Optional = true, !use.required
	p.chosen.List = append(p.chosen.List, *b)
	if m.env != "" {
		p.chosen.Env[m.env] = b.Target
	}
	return nil
}

// bind chooses the binding of one mount.
func (p *toolPlan) bind(field string, m *toolMount) (*Binding, error) {
	f, real, err := p.box.open(field, m.name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b := &Binding{
		Field: field, Tool: m.name, Target: m.target, Writable: m.mode != toolReadOnly, Dir: !m.file && m.mode != toolSocket,
	}
	switch {
	case m.target == "":
		b.Target = filepath.Join(p.box.home, m.source)
	case !path.IsAbs(m.target):
		b.Target = path.Join(p.home, m.target)
	}
	if !m.shadow {
		return b, nil
	}
	if b.Shadow, err = shadow(f, filepath.Join(shadowDir(p.dir), m.name)); err != nil {
		return nil, mountDenied(field, "%s cannot be copied for the sandbox: %v", real, err)
	}
	return b, nil
}

// checkVacant refuses a tool's mount at a path that the spec uses for something else.
func checkVacant(spec *protocol.SandboxSpec, b *Binding) error {
	if err := protocol.ValidateTarget(b.Field, b.Target); err != nil {
		return err
	}
	for i, m := range spec.Mounts {
		if path.Clean(m.Target) == b.Target {
			return protocol.Invalid(b.Field, "%s and spec.mounts[%d] would both be mounted at %s", b.Tool, i, b.Target)
		}
	}
	for i, m := range spec.Tmpfs {
		if path.Clean(m.Target) == b.Target {
			return protocol.Invalid(b.Field, "%s and spec.tmpfs[%d] would both be mounted at %s", b.Tool, i, b.Target)
		}
	}
	for i, c := range spec.Copies {
		if c.Service == "" && isBelow(path.Clean(c.Target), b.Target) {
			return protocol.Invalid(b.Field, "%s at %s would hide spec.copies[%d]", b.Tool, b.Target, i)
		}
	}
	return nil
}
