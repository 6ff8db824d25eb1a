// Package tools gives a model tools over any environment: shell, python, read, write, edit, glob, grep and list.
//
//	box := tools.New(env, tools.Limits{})
//	answer := box.Call(ctx, "shell", json.RawMessage(`{"command": "go test ./..."}`))
//
// A tool takes a JSON object and answers with text for the model. A mistake of the model, such as a file that does not
// exist, is an answer that says so, not an error of the program. Answers are bounded: a longer text is cut, and says
// where.
//
// The package imports only sdk/environment.
package tools
