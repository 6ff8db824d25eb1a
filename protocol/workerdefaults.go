package protocol

import (
	"reflect"
	"slices"
	"strings"
)

// MaxWorkerDefaults bounds the defaults of a worker, encoded: they are in its entry of the table of
// hosts, which is written every few seconds and listed with all others in one message.
const MaxWorkerDefaults = 4 << 10

// WorkerDefaults are the fields of a sandbox for which the operator of a worker may set a default:
// what a sandbox is given or bounded by on its host.
var WorkerDefaults = []string{
	"env", "user", "cwd", "cpu", "memory", "pids", "disk", "shm_size", "read_only", "tmpfs", "profile", "runtime", "pull",
	"network", "mounts", "tools", "idle_ttl", "create_timeout", "grace",
}

// noWorkerDefault says why the others have none.
var noWorkerDefault = map[string]string{
	"image":             "each request says its image",
	"command":           "what a sandbox runs is for its request to say",
	"labels":            "they are the caller's own",
	"hostname":          "it is of one sandbox",
	"gpus":              "a request could not say that it wants none",
	"ports":             "they are of one sandbox",
	"copies":            "uploaded trees are not kept for ever",
	"ttl":               "it counts from the create, before there is a worker",
	"queue_timeout":     "it is over when there is a worker",
	"on_host_loss":      "what a sandbox outlives is for its request to say",
	"placement":         "it says which worker takes a sandbox",
	"on_delete":         "what a sandbox runs is for its request to say",
	"required_services": "what a sandbox runs is for its request to say",
	"optional_services": "what a sandbox runs is for its request to say",
}

// ValidateWorkerDefaults checks that a worker may have these defaults, whatever host it is on. The
// error names the field, below "worker.defaults".
func ValidateWorkerDefaults(s *SandboxSpec) error {
	v := reflect.ValueOf(s).Elem()
	for i := range v.NumField() {
		name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
		if !v.Field(i).IsZero() && !slices.Contains(WorkerDefaults, name) {
			return Invalid(workerDefaults+"."+name, "cannot have a default of a worker: %s", noWorkerDefault[name])
		}
	}
	if n := len(Encode(s)); n > MaxWorkerDefaults {
		return Invalid(workerDefaults, "has %d bytes, at most %d are allowed", n, MaxWorkerDefaults)
	}
	whole := *s
	whole.Image = "any"
	return AsWorkerDefault(whole.Validate())
}

const workerDefaults = "worker.defaults"

// AsWorkerDefault names in an error about a spec the worker's default that is meant.
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
