package protocol

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func goodSandbox() *SandboxSpec { return &SandboxSpec{Image: "local/busybox:1"} }

func goodExec() *ExecSpec { return &ExecSpec{Command: []string{"true"}} }

// refused is a spec with a single fault. The error must name field.
type refused[S any] struct {
	name  string
	fault func(*S)
	field string
}

func checkRefused[S any](t *testing.T, good func() *S, validate func(*S) error, cases []refused[S]) {
	t.Helper()
	if err := validate(good()); err != nil {
		t.Fatalf("the spec without a fault: %v", err)
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			spec := good()
			tc.fault(spec)
			wantError(t, validate(spec), InvalidArgument, "", tc.field)
		})
	}
}

func repeated(n int, value string) []string { return slices.Repeat([]string{value}, n) }

func numbered(n int, value string) map[string]string {
	m := map[string]string{}
	for i := range n {
		m[fmt.Sprintf("K%d", i)] = value
	}
	return m
}

func TestP9_InvalidSandboxSpecIsRejectedByField(t *testing.T) {
	type S = SandboxSpec
	checkRefused(t, goodSandbox, (*S).Validate, []refused[S]{
		{"no image", func(s *S) { s.Image = "" }, "spec.image"},
		{"image with a space", func(s *S) { s.Image = "a b" }, "spec.image"},
		{"image with a newline", func(s *S) { s.Image = "a\n" }, "spec.image"},
		{"image like an option", func(s *S) { s.Image = "-v" }, "spec.image"},
		{"image with NUL", func(s *S) { s.Image = "a\x00" }, "spec.image"},
		{"image with non-ASCII letters", func(s *S) { s.Image = "bücher" }, "spec.image"},
		{"image too long", func(s *S) { s.Image = strings.Repeat("a", 513) }, "spec.image"},
		{"command without a program", func(s *S) { s.Command = []string{""} }, "spec.command[0]"},
		{"command with NUL", func(s *S) { s.Command = []string{"a", "b\x00"} }, "spec.command[1]"},
		{"command with too many arguments", func(s *S) { s.Command = repeated(MaxArgs+1, "a") }, "spec.command"},
		{"command too long", func(s *S) { s.Command = []string{strings.Repeat("a", MaxArgsBytes+1)} }, "spec.command"},
		{"user with a space", func(s *S) { s.User = "a b" }, "spec.user"},
		{"user with a newline", func(s *S) { s.User = "root\n" }, "spec.user"},
		{"user like an option", func(s *S) { s.User = "-1" }, "spec.user"},
		{"user with two groups", func(s *S) { s.User = "a:b:c" }, "spec.user"},
		{"user with an empty group", func(s *S) { s.User = "a:" }, "spec.user"},
		{"group alone", func(s *S) { s.User = ":a" }, "spec.user"},
		{"user with a slash", func(s *S) { s.User = "../a" }, "spec.user"},
		{"user with NUL", func(s *S) { s.User = "a\x00" }, "spec.user"},
		{"user with non-ASCII letters", func(s *S) { s.User = "jürgen" }, "spec.user"},
		{"user too long", func(s *S) { s.User = strings.Repeat("a", 129) }, "spec.user"},
		{"cwd relative", func(s *S) { s.Cwd = "src" }, "spec.cwd"},
		{"cwd a dot", func(s *S) { s.Cwd = "./" }, "spec.cwd"},
		{"cwd with NUL", func(s *S) { s.Cwd = "/a\x00" }, "spec.cwd"},
		{"cwd too long", func(s *S) { s.Cwd = "/" + strings.Repeat("a", 4096) }, "spec.cwd"},
		{"cpu not a number", func(s *S) { s.CPU = math.NaN() }, "spec.cpu"},
		{"cpu negative", func(s *S) { s.CPU = -1 }, "spec.cpu"},
		{"cpu too small", func(s *S) { s.CPU = 0.001 }, "spec.cpu"},
		{"cpu infinite", func(s *S) { s.CPU = math.Inf(1) }, "spec.cpu"},
		{"cpu minus infinite", func(s *S) { s.CPU = math.Inf(-1) }, "spec.cpu"},
		{"memory too small", func(s *S) { s.Memory = MinMemory - 1 }, "spec.memory"},
		{"memory negative", func(s *S) { s.Memory = -1 }, "spec.memory"},
		{"pids too few", func(s *S) { s.PIDs = 7 }, "spec.pids"},
		{"pids negative", func(s *S) { s.PIDs = -1 }, "spec.pids"},
		{"pids too many", func(s *S) { s.PIDs = MaxPIDs + 1 }, "spec.pids"},
		{"idle_ttl negative", func(s *S) { s.IdleTTL = -1 }, "spec.idle_ttl"},
		{"queue_timeout negative", func(s *S) { s.QueueTimeout = -1 }, "spec.queue_timeout"},
		{"create_timeout negative", func(s *S) { s.CreateTimeout = -1 }, "spec.create_timeout"},
		{"grace negative", func(s *S) { s.Grace = -1 }, "spec.grace"},
		{"grace too long", func(s *S) { s.Grace = MaxGrace + 1 }, "spec.grace"},
		{"on_host_loss unknown", func(s *S) { s.OnHostLoss = "move" }, "spec.on_host_loss"},
		{"placement without a value", func(s *S) { s.Placement = []string{"a=b", "zone"} }, "spec.placement[1]"},
		{"placement without a key", func(s *S) { s.Placement = []string{"=b"} }, "spec.placement[0]"},
		{"placement in an empty list", func(s *S) { s.Placement = []string{"zone in ()"} }, "spec.placement[0]"},
		{"placement not closed", func(s *S) { s.Placement = []string{"zone in (a"} }, "spec.placement[0]"},
		{"placement with two keys", func(s *S) { s.Placement = []string{"a b=c"} }, "spec.placement[0]"},
		{"too many placements", func(s *S) { s.Placement = make([]string, MaxPlacement+1) }, "spec.placement"},
		{"on_host_loss in capitals", func(s *S) { s.OnHostLoss = "Wait" }, "spec.on_host_loss"},
	})
}

func TestSandboxSpecWithAFaultyDurationAlwaysNamesTheSameField(t *testing.T) {
	for range 50 {
		spec := goodSandbox()
		spec.IdleTTL, spec.QueueTimeout, spec.CreateTimeout = -1, -1, -1
		wantError(t, spec.Validate(), InvalidArgument, "", "spec.idle_ttl")
	}
}

const someDigest = "sha256-0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

func TestS12_InvalidMountsAndCopiesAreRejectedByField(t *testing.T) {
	type S = SandboxSpec
	mount := func(source, target string) func(*S) {
		return func(s *S) { s.Mounts = []Mount{{Source: source, Target: target}} }
	}
	digest := func(d string) func(*S) { return func(s *S) { s.Copies = []Copy{{Digest: d, Target: "/src"}} } }
	cases := []refused[S]{
		{"source empty", mount("", "/a"), "spec.mounts[0].source"},
		{"source relative", mount("a", "/a"), "spec.mounts[0].source"},
		{"source with NUL", mount("/a\x00", "/a"), "spec.mounts[0].source"},
		{"source the root", mount("/", "/a"), "spec.mounts[0].source"},
		{"source is the root with a double slash", mount("//", "/a"), "spec.mounts[0].source"},
		{"source the root, by dots", mount("/opt/..", "/a"), "spec.mounts[0].source"},
		{"target empty", mount("/opt", ""), "spec.mounts[0].target"},
		{"target relative", mount("/opt", "a"), "spec.mounts[0].target"},
		{"target with NUL", mount("/opt", "/a\x00b"), "spec.mounts[0].target"},
		{"too many mounts", func(s *S) { s.Mounts = make([]Mount, MaxMounts+1) }, "spec.mounts"},
		{"too many copies", func(s *S) { s.Copies = make([]Copy, MaxCopies+1) }, "spec.copies"},
		{"same target", func(s *S) { s.Mounts = []Mount{{Source: "/x", Target: "/a"}, {Source: "/y", Target: "/a"}} },
			"spec.mounts[1].target"},
		{"same target with a slash", func(s *S) {
			s.Mounts = []Mount{{Source: "/x", Target: "/a"},
				{Source: "/y", Target: "/a/"}}
		}, "spec.mounts[1].target"},
		{"same target by dots", func(s *S) {
			s.Mounts = []Mount{{Source: "/x", Target: "/a"},
				{Source: "/y", Target: "/b/../a"}}
		}, "spec.mounts[1].target"},
		{"mount and copy to one target", func(s *S) {
			s.Mounts = []Mount{{Source: "/x", Target: "/a"}}
			s.Copies = []Copy{{Digest: someDigest, Target: "/a/"}}
		}, "spec.copies[0].target"},
		{"copy below a mount", func(s *S) {
			s.Mounts = []Mount{{Source: "/x", Target: "/a"}}
			s.Copies = []Copy{{Digest: someDigest, Target: "/b"}, {Digest: someDigest, Target: "/c/../a/b"}}
		}, "spec.copies[1].target"},
		{"copy below a file system in memory", func(s *S) {
			s.Tmpfs = []Tmpfs{{Target: "/a"}}
			s.Copies = []Copy{{Digest: someDigest, Target: "/a/b"}}
		}, "spec.copies[0].target"},
		{"copy into an unknown service", func(s *S) {
			s.RequiredServices = Services{"db": {Image: "postgres"}}
			s.Copies = []Copy{{Digest: someDigest, Target: "/a", Service: "db"},
				{Digest: someDigest, Target: "/a", Service: "cache"}}
		}, "spec.copies[1].service"},
		{"two copies to one target of a service", func(s *S) {
			s.OptionalServices = Services{"db": {Image: "postgres"}}
			s.Copies = []Copy{{Digest: someDigest, Target: "/a", Service: "db"},
				{Digest: someDigest, Target: "/b/../a", Service: "db"}}
		}, "spec.copies[1].target"},
		{"copy into a reserved place of a service", func(s *S) {
			s.OptionalServices = Services{"db": {Image: "postgres"}}
			s.Copies = []Copy{{Digest: someDigest, Target: "/.boxfleet/run", Service: "db"}}
		}, "spec.copies[0].target"},
		{"copy onto a root that cannot be written", func(s *S) {
			s.ReadOnly, s.Copies = true, []Copy{{Digest: someDigest, Target: "/a"}}
		}, "spec.read_only"},
		{"copy target relative", func(s *S) { s.Copies = []Copy{{Digest: someDigest, Target: "src"}} },
			"spec.copies[0].target"},
		{"copy size negative", func(s *S) { s.Copies = []Copy{{Digest: someDigest, Target: "/src", Size: -1}} },
			"spec.copies[0].size"},
		{"digest empty", digest(""), "spec.copies[0].digest"},
		{"digest short", digest(someDigest[:len(someDigest)-1]), "spec.copies[0].digest"},
		{"digest long", digest(someDigest + "0"), "spec.copies[0].digest"},
		{"digest with a newline", digest(someDigest + "\n"), "spec.copies[0].digest"},
		{"digest in capitals", digest(strings.ToUpper(someDigest)), "spec.copies[0].digest"},
		{"digest with a colon", digest(strings.Replace(someDigest, "-", ":", 1)), "spec.copies[0].digest"},
		{"digest of another kind", digest(strings.Replace(someDigest, "256", "512", 1)), "spec.copies[0].digest"},
		{"digest with a path", digest("sha256-../" + someDigest[10:]), "spec.copies[0].digest"},
	}
	for _, target := range []string{"/", "//", "/.", "/..", "/a/..", "/.boxfleet", "/.boxfleet/", "/.boxfleet/run",
		"//.boxfleet/run",
		"/a/../.boxfleet/x", "/proc", "/proc/1", "/./proc/sys", "/sys", "/sys/fs/cgroup", "/dev", "/dev/shm",
		"/a/../../dev"} {
		cases = append(cases, refused[S]{"mount on " + target, mount("/opt", target), "spec.mounts[0].target"},
			refused[S]{"copy to " + target, func(s *S) { s.Copies = []Copy{{Digest: someDigest, Target: target}} },
				"spec.copies[0].target"})
	}
	checkRefused(t, goodSandbox, (*S).Validate, cases)
}

func TestACopyIntoAServiceDoesNotConflictWithOtherContainers(t *testing.T) {
	spec := goodSandbox()
	spec.ReadOnly, spec.RequiredServices, spec.OptionalServices = true, Services{"db": {Image: "postgres"}},
		Services{"cache": {Image: "redis"}}
	spec.Mounts, spec.Tmpfs = []Mount{{Source: "/opt", Target: "/a"}}, []Tmpfs{{Target: "/b"}}
	for _, target := range []string{"/a", "/a/x", "/b", "/b/x"} {
		for _, service := range []string{"db", "cache"} {
			spec.Copies = append(spec.Copies, Copy{Digest: someDigest, Target: target, Service: service})
		}
	}
	if err := spec.Validate(); err != nil {
		t.Error(err)
	}
}

func TestTargetsThatOnlyLookReservedAreValid(t *testing.T) {
	for _, target := range []string{"/device", "/procs", "/system", "/.boxfleets", "/a/proc", "/home/dev"} {
		spec := goodSandbox()
		spec.Mounts = []Mount{{Source: "/opt", Target: target}}
		if err := spec.Validate(); err != nil {
			t.Errorf("%s: %v", target, err)
		}
	}
}

func TestP9_InvalidExecSpecIsRejectedByField(t *testing.T) {
	type S = ExecSpec
	checkRefused(t, goodExec, (*S).Validate, []refused[S]{
		{"no command", func(s *S) { s.Command = nil }, "spec.command"},
		{"command without a program", func(s *S) { s.Command = []string{"", "a"} }, "spec.command[0]"},
		{"command with NUL", func(s *S) { s.Command = []string{"a\x00"} }, "spec.command[0]"},
		{"argument with NUL", func(s *S) { s.Command = []string{"a", "", "\x00"} }, "spec.command[2]"},
		{"too many arguments", func(s *S) { s.Command = repeated(MaxArgs+1, "a") }, "spec.command"},
		{"arguments too long", func(s *S) { s.Command = repeated(2, strings.Repeat("a", MaxArgsBytes/2+1)) }, "spec.command"},
		{"cwd relative", func(s *S) { s.Cwd = "a/b" }, "spec.cwd"},
		{"cwd with NUL", func(s *S) { s.Cwd = "/\x00" }, "spec.cwd"},
		{"user with a newline", func(s *S) { s.User = "a\n" }, "spec.user"},
		{"stdin too long", func(s *S) { s.Stdin = make([]byte, MaxStdin+1) }, "spec.stdin"},
		{"timeout negative", func(s *S) { s.Timeout = -1 }, "spec.timeout"},
		{"timeout too short", func(s *S) { s.Timeout = Duration(time.Millisecond - 1) }, "spec.timeout"},
		{"grace negative", func(s *S) { s.Grace = -1 }, "spec.grace"},
		{"grace too long", func(s *S) { s.Grace = MaxGrace + 1 }, "spec.grace"},
		{"output_limit negative", func(s *S) { s.OutputLimit = -1 }, "spec.output_limit"},
		{"output_limit too big", func(s *S) { s.OutputLimit = MaxOutputLimit + 1 }, "spec.output_limit"},
	})
}

func TestX4_EnvironmentNamesArePosix(t *testing.T) {
	for _, name := range []string{"", "1A", "A B", " A", "A=B", "=", "A\n", "\nA", "A\r", "A-B", "A.B", "Ä", "Aä", "А",
		"A\x00", "A\xff", "$A", "A[0]"} {
		t.Run(fmt.Sprintf("%q", name), func(t *testing.T) {
			box, exec := goodSandbox(), goodExec()
			box.Env = map[string]string{"GOOD": "1", name: "x"}
			exec.Env = box.Env
			wantError(t, box.Validate(), InvalidArgument, "", "spec.env."+name)
			wantError(t, exec.Validate(), InvalidArgument, "", "spec.env."+name)
		})
	}
	spec := goodExec()
	spec.Env = map[string]string{"A": "", "_": "x=y", "a9_Z": "line\nline", "Z": "ü \xff"}
	if err := spec.Validate(); err != nil {
		t.Errorf("values may be any text: %v", err)
	}
	spec.Env = map[string]string{"A": "\x00"}
	wantError(t, spec.Validate(), InvalidArgument, "", "spec.env.A")
	spec.Env = numbered(MaxEnv+1, "")
	wantError(t, spec.Validate(), InvalidArgument, "", "spec.env")
	spec.Env = map[string]string{"A": strings.Repeat("x", MaxEnvBytes)}
	wantError(t, spec.Validate(), InvalidArgument, "", "spec.env")
	spec.Env = map[string]string{strings.Repeat("A", 300): "", strings.Repeat("é", 300): ""}
	if e := AsError(spec.Validate()); len(e.Field) > 400 || len(e.Message) > 1000 {
		t.Errorf("the error repeats a long name: %d and %d bytes", len(e.Field), len(e.Message))
	}
}

func TestInvalidLabelsAreRejectedByKey(t *testing.T) {
	long := strings.Repeat("a", MaxLabelKey+1)
	for _, tc := range []struct {
		labels map[string]string
		field  string
	}{
		{map[string]string{"": "x"}, "spec.labels."},
		{map[string]string{"a b": "x"}, "spec.labels.a b"},
		{map[string]string{"-a": "x"}, "spec.labels.-a"},
		{map[string]string{"a\n": "x"}, "spec.labels.a\n"},
		{map[string]string{"a=b": "x"}, "spec.labels.a=b"},
		{map[string]string{"ä": "x"}, "spec.labels.ä"},
		{map[string]string{"a,b": "x"}, "spec.labels.a,b"},
		{map[string]string{long: "x"}, "spec.labels." + long[:80]},
		{map[string]string{"a": "x\n"}, "spec.labels.a"},
		{map[string]string{"a": "x\x00"}, "spec.labels.a"},
		{map[string]string{"a": strings.Repeat("x", MaxLabelValue+1)}, "spec.labels.a"},
		{numbered(MaxLabels+1, "x"), "spec.labels"},
	} {
		spec := goodSandbox()
		spec.Labels = tc.labels
		wantError(t, spec.Validate(), InvalidArgument, "", tc.field)
	}
	spec := goodSandbox()
	spec.Labels = map[string]string{"a": "", "example.org/team_1-x": "ü =, x",
		strings.Repeat("a", MaxLabelKey): strings.Repeat("x", MaxLabelValue)}
	if err := spec.Validate(); err != nil {
		t.Error(err)
	}
}

func TestX3_InterpreterNameIsCheckedAtFullLength(t *testing.T) {
	for _, name := range []string{"", "python\n", "\npython", "-c", "-", "a/b", "/bin/sh", "a b", "sh;id", "sh\x00",
		"pythön", "$(id)", "a\tb", "--"} {
		wantError(t, ValidateInterpreter("language", name), InvalidArgument, "", "language")
	}
	for _, name := range []string{"python", "python3.12", "node", "c++filt"[:1], "a-b_c.d", "_"} {
		if err := ValidateInterpreter("language", name); err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}
}

func TestSpecsAtTheirLimitsAreValid(t *testing.T) {
	box := &SandboxSpec{Image: strings.Repeat("a", 512), Command: repeated(MaxArgs, "a"), Env: numbered(MaxEnv, "x"),
		Labels: numbered(MaxLabels, "x"),
		User:   "0:0", Cwd: "/", CPU: 0.01, Memory: MinMemory, PIDs: 8, Grace: MaxGrace, OnHostLoss: OnHostLossFail,
		IdleTTL: 1}
	for i := range MaxMounts {
		box.Mounts = append(box.Mounts, Mount{Source: "/opt", Target: fmt.Sprintf("/m%d", i)})
	}
	for i := range MaxCopies {
		box.Copies = append(box.Copies, Copy{Digest: someDigest, Target: fmt.Sprintf("/c%d", i)})
	}
	if err := box.Validate(); err != nil {
		t.Error(err)
	}
	exec := &ExecSpec{Command: []string{"a", strings.Repeat("x", MaxArgsBytes-1)}, Stdin: make([]byte, MaxStdin),
		Timeout: Duration(time.Millisecond),
		Grace:   MaxGrace, OutputLimit: MaxOutputLimit, Env: map[string]string{"A": strings.Repeat("x", MaxEnvBytes-1)}}
	if err := exec.Validate(); err != nil {
		t.Error(err)
	}
}

// Resolve fills in every default; a resolved spec is valid, and resolving it again changes
// nothing.
func TestS18_ResolvedSpecIsValidAndFinal(t *testing.T) {
	box, exec := goodSandbox(), goodExec()
	box.Resolve()
	exec.Resolve()
	if err := box.Validate(); err != nil {
		t.Error(err)
	}
	if err := exec.Validate(); err != nil {
		t.Error(err)
	}
	if box.CPU != DefaultCPU || box.Memory != DefaultMemory || box.PIDs != DefaultPIDs ||
		box.QueueTimeout != DefaultQueueTimeout ||
		box.CreateTimeout != DefaultCreateTimeout || box.Grace != DefaultGrace || box.OnHostLoss != OnHostLossWait ||
		box.IdleTTL != 0 {
		t.Errorf("sandbox: %s", show(box))
	}
	if exec.Grace != DefaultGrace || exec.OutputLimit != DefaultOutputLimit || exec.Timeout != 0 {
		t.Errorf("exec: %s", show(exec))
	}
	rapid.Check(t, func(t *rapid.T) {
		s := anyValue[SandboxSpec]().Draw(t, "spec")
		s.Resolve()
		again := s
		again.Resolve()
		if !math.IsNaN(s.CPU) && !same(s, again) {
			t.Fatalf("once %s\ntwice %s", show(s), show(again))
		}
	})
}

// For any spec, validation returns nil or a typed error below "spec", and a valid spec
// has the properties that the worker relies on.
func TestValidSpecsAreSafeToUse(t *testing.T) {
	names := rapid.OneOf(rapid.String(), rapid.StringMatching(`[A-Za-z_]{1,3}`))
	paths := rapid.OneOf(rapid.String(), rapid.StringMatching(`(/(\.|\.\.|a|b|proc|dev|\.boxfleet)){0,4}/?`))
	rapid.Check(t, func(t *rapid.T) {
		spec := goodSandbox()
		spec.Env = rapid.MapOfN(names, rapid.String(), 0, 3).Draw(t, "env")
		spec.User = names.Draw(t, "user")
		for _, target := range rapid.SliceOfN(paths, 0, 3).Draw(t, "targets") {
			spec.Mounts = append(spec.Mounts, Mount{Source: "/opt", Target: target})
		}
		err := spec.Validate()
		if err != nil {
			e := AsError(err)
			if e.Code != InvalidArgument || !strings.HasPrefix(e.Field, "spec.") {
				t.Fatalf("%#v", e)
			}
			return
		}
		for name := range maps.Keys(spec.Env) {
			if name == "" || strings.ContainsAny(name, "= \n\x00") {
				t.Fatalf("environment name %q is accepted", name)
			}
		}
		for _, m := range spec.Mounts {
			if strings.Contains(m.Target, "/proc") && strings.Index(m.Target, "/proc") == 0 &&
				!strings.Contains(m.Target, "..") {
				t.Fatalf("target %q is accepted", m.Target)
			}
		}
	})
}
