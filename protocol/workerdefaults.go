package protocol

import (
	"reflect"
	"slices"
	"strings"
)

// MaxWorkerDefaults is the maximum encoded size of a worker's defaults in bytes. They are part of the worker's entry in
// the host table. The entry is written every few seconds, and one message lists all entries.
const MaxWorkerDefaults = 4 << 10

// WorkerDefaults are the sandbox fields for which the operator of a worker may set a default: what a host
// provides to a sandbox, and its limits.
var WorkerDefaults = []string{
	"env", "user", "cwd", "cpu", "memory", "pids", "disk", "shm_size", "read_only", "tmpfs", "profile", "runtime", "pull",
	"network", "mounts", "tools", "idle_ttl", "create_timeout", "grace",
}

// noWorkerDefault explains why the other fields cannot have a worker's default.
var noWorkerDefault = map[string]string{
	"image":             "each request names its image",
	"command":           "the request decides what a sandbox runs",
	"labels":            "labels belong to the caller",
	"sensitive_env":     "a value is sealed for one tenant",
	"secrets":           "secrets belong to a tenant",
	"hostname":          "a hostname belongs to one sandbox",
	"gpus":              "a request could not opt out",
	"ports":             "ports belong to one sandbox",
	"copies":            "uploaded trees are not kept forever",
	"ttl":               "it starts at the create, before a worker is chosen",
	"queue_timeout":     "it ends once a worker is chosen",
	"on_host_loss":      "the request decides what happens when a host is lost",
	"placement":         "it selects the worker",
	"on_delete":         "the request decides what a sandbox runs",
	"required_services": "the request decides what a sandbox runs",
	"optional_services": "the request decides what a sandbox runs",
}

// ValidateWorkerDefaults checks everything about a worker's defaults that does not depend on its host. Errors:
// invalid_argument, or permission_denied for a forbidden network range; the field is below "worker.defaults".
func ValidateWorkerDefaults(s *SandboxSpec) error {
	v := reflect.ValueOf(s).Elem()
	for i := range v.NumField() {
		name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
		if !v.Field(i).IsZero() && !slices.Contains(WorkerDefaults, name) {
			return Invalid(workerDefaults+"."+name, "cannot have a worker default: %s", noWorkerDefault[name])
		}
	}
	if n := len(Encode(s)); n > MaxWorkerDefaults {
		return Invalid(workerDefaults, "has %d bytes, at most %d are allowed", n, MaxWorkerDefaults)
	}
	spec := *s
	spec.Image = "any"
	return AsWorkerDefault(spec.Validate())
}

const workerDefaults = "worker.defaults"

// AsWorkerDefault renames the field of an error from "spec..." to "worker.defaults...". It returns nil if err is nil.
func AsWorkerDefault(err error) error {
	if err == nil {
		return nil
	}
	e := *AsError(err)
	if rest, ok := strings.CutPrefix(e.Field, "spec"); ok {
		e.Field = workerDefaults + rest
	}
	return &e
}
