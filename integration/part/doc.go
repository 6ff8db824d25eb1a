// Package part runs the parts of a deployment as processes of the measuring program: the same binary again, in a role
// passed in an environment variable. The program sends a part commands through its stdin, one per line, and gets one
// line of JSON for each. When the program ends, however that happens, stdin ends and the part exits.
package part
