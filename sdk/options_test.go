package sdk_test

import (
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// A call accepts only its own option type, so the compiler refuses options of other calls.
func TestP9_OptionsCompileOnlyWhereTheyApply(t *testing.T) {
	takers := map[string]string{ // for each call, the names of its options without "With"
		"c.Create(ctx, sdk.SandboxSpec{}, %)": "ID Name RequestID Wait YAML SensitiveEnv",
		"s.Start(ctx, sdk.ExecSpec{}, %)":     "ID RequestID SensitiveEnv",
		"s.Exec(ctx, sdk.ExecSpec{}, %)":      "ID RequestID Stdout Stderr Collect SensitiveEnv",
		"s.RunCode(ctx, ``, ``, %)":           "ID RequestID Stdout Stderr Collect SensitiveEnv",
		"x.Wait(ctx, %)":                      "Stdout Stderr Collect Offset",
		"s.Stop(ctx, %)":                      "RequestID Wait",
		"s.Resume(ctx, %)":                    "RequestID Wait",
		"s.Delete(ctx, %)":                    "RequestID Wait",
		"s.Extend(ctx, 1, %)":                 "RequestID",
		"x.Cancel(ctx, %)":                    "RequestID",
		"c.DeleteByLabels(ctx, nil, %)":       "Wait",
		"c.List(ctx, %)":                      "Name Labels States PageSize Page",
		"c.ListPage(ctx, %)":                  "Name Labels States PageSize Page",
		"s.Execs(ctx, %)":                     "ExecStates PageSize Page",
		"s.ExecsPage(ctx, %)":                 "ExecStates PageSize Page",
		"s.Events(ctx, %)":                    "From Follow",
		"x.Events(ctx, %)":                    "From Follow",
		"x.Output(ctx, %)":                    "Follow Offset",
		"s.Logs(ctx, %)":                      "Follow Offset Service",
		"s.LogsPage(ctx, ``, 0, 0, %)":        "Service",
		"c.Upload(ctx, ``, ``, %)":            "Service Exclude Owner Progress",
		"c.Images().Import(ctx, ``, nil, %)":  "Progress Changes Workers",
	}
	options := map[string]string{
		"ID": "``", "Name": "``", "RequestID": "``", "Wait": "true", "YAML": "nil, nil", "Stdout": "nil", "Stderr": "nil",
		"Collect": "0", "SensitiveEnv": "nil",
		"Labels": "nil", "States": "", "ExecStates": "", "PageSize": "0", "Page": "``", "From": "0", "Follow": "true",
		"Offset":  "``, 0",
		"Service": "``", "Exclude": "", "Owner": "``", "Progress": "nil", "Changes": "", "Workers": "",
	}
	files := token.NewFileSet()
	imports := importer.ForCompiler(files, "gc", exportData(t))
	compiles := func(statement string) bool {
		source := "package p\nimport (\"context\"; \"github.com/boxfleet/boxfleet/sdk\")\n" +
			"func f(ctx context.Context, c *sdk.Client, s *sdk.Sandbox, x *sdk.Exec) {\n" + statement + "\n}\nvar _ = sdk.NewID"
		file, err := parser.ParseFile(files, "p.go", source, 0)
		if err != nil {
			t.Fatal(err)
		}
		_, err = (&types.Config{Importer: imports}).Check("p", files, []*ast.File{file}, nil)
		return err == nil
	}
	for call, taken := range takers {
		if !compiles(strings.Replace(call, ", %", "", 1)) && !compiles(strings.Replace(call, "%", "", 1)) {
			t.Errorf("%s does not compile without options", call)
		}
		for name, argument := range options {
			want := strings.Contains(" "+taken+" ", " "+name+" ")
			if got := compiles(strings.Replace(call, "%", "sdk.With"+name+"("+argument+")", 1)); got != want {
				t.Errorf("%s with With%s: compiles %v, want %v", call, name, got, want)
			}
		}
	}
}

// exportData returns a lookup function for the compiled packages that the SDK imports.
func exportData(t *testing.T) func(path string) (io.ReadCloser, error) {
	t.Helper()
	out, err := exec.Command("go", "list", "-export", "-deps", "-f", "{{.ImportPath}} {{.Export}}",
		"github.com/boxfleet/boxfleet/sdk").Output()
	if err != nil {
		t.Fatal(err)
	}
	compiled := map[string]string{}
	for line := range strings.Lines(string(out)) {
		path, file, _ := strings.Cut(strings.TrimSpace(line), " ")
		compiled[path] = file
	}
	return func(path string) (io.ReadCloser, error) { return os.Open(compiled[path]) }
}
