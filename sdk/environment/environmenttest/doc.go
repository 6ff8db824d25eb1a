// Package environmenttest helps to test implementations of package environment, and programs that use one.
//
// [Run] checks every behaviour in the table of package conformance:
//
//	func TestMine(t *testing.T) {
//		environmenttest.Run(t, mine.New(), conformance.Options{})
//	}
//
// [NewMemory] makes an environment in memory, for tests of programs that use an environment. The test brings the
// programs that its commands run:
//
//	env, err := environmenttest.NewMemory(environmenttest.Config{
//		Files: map[string]string{"/etc/motd": "hello"},
//		Commands: map[string]environmenttest.Command{
//			"go": func(ctx context.Context, c *environmenttest.Call) int {
//				fmt.Fprintln(c.Stdout, "ok")
//				return 0
//			},
//		},
//	})
//
// The package imports only sdk/environment, its conformance, and the shell of mvdan.cc/sh. Import it in tests only.
package environmenttest
