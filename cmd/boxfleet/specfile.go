package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
	"github.com/boxfleet/boxfleet/spec"
)

// readSpec reads a file of one document; "-" means stdin.
func readSpec(file string, stdin io.Reader) (*spec.Document, error) {
	data, err := readAll(file, stdin)
	if err != nil {
		return nil, err
	}
	d, err := spec.Parse(data, specOptions(file))
	if err != nil {
		return nil, err
	}
	besideFile(file, d)
	return d, nil
}

// readSpecs reads a file of several documents.
func readSpecs(file string, stdin io.Reader) ([]*spec.Document, error) {
	data, err := readAll(file, stdin)
	if err != nil {
		return nil, err
	}
	documents, err := spec.ParseAll(data, specOptions(file))
	if err != nil {
		return nil, err
	}
	for _, d := range documents {
		besideFile(file, d)
	}
	return documents, nil
}

// readDefaults reads the file of tenant defaults, if one is configured.
func readDefaults(file string) (spec.Defaults, error) {
	if file == "" {
		return nil, nil
	}
	data, err := readAll(file, nil)
	if err != nil {
		return nil, err
	}
	return spec.ParseDefaults(data, specOptions(file))
}

// quotasReader returns the function that reads the file of quotas; nil if none is configured.
func quotasReader(file string) func() (spec.Quotas, error) {
	if file == "" {
		return nil
	}
	return func() (spec.Quotas, error) {
		data, err := readAll(file, nil)
		if err != nil {
			return nil, err
		}
		return spec.ParseQuotas(data, specOptions(file))
	}
}

// readWorkerDefaults reads the file of a worker's defaults, if one is configured.
func readWorkerDefaults(file string) (*protocol.SandboxSpec, error) {
	if file == "" {
		return nil, nil
	}
	data, err := readAll(file, nil)
	if err != nil {
		return nil, err
	}
	return spec.ParseWorkerDefaults(data, specOptions(file))
}

func specOptions(file string) spec.Options {
	if file == "-" {
		file = "stdin"
	}
	return spec.Options{Name: file, Env: environment()}
}

// environment returns the environment of this process, which has the values of the variables in specs.
func environment() map[string]string {
	env := map[string]string{}
	for _, kv := range os.Environ() {
		if k, v, ok := strings.Cut(kv, "="); ok {
			env[k] = v
		}
	}
	return env
}

// besideFile makes relative paths of uploads relative to the spec file. Such paths then do not depend on the working
// directory.
func besideFile(file string, d *spec.Document) {
	for i := range d.Copies {
		if source := &d.Copies[i].Source; file != "-" && !filepath.IsAbs(*source) {
			*source = filepath.Join(filepath.Dir(file), *source)
		}
	}
}

// check validates a document without a fleet.
func check(d *spec.Document) error {
	sdk.PlaceCopies(d)
	return d.Validate()
}

func readAll(file string, stdin io.Reader) ([]byte, error) {
	if file == "" {
		return nil, usage("--file is missing: the file with the spec, or - for stdin")
	}
	in := stdin
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return nil, usage("read the spec: %v", err)
		}
		defer f.Close()
		in = f
	}
	data, err := io.ReadAll(io.LimitReader(in, spec.MaxFileBytes+1))
	if err != nil {
		return nil, usage("read the spec: %v", err)
	}
	return data, nil
}
