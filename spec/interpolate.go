package spec

import (
	"errors"
	"fmt"
	"strings"
)

// maxNesting limits how deep variables may be nested in the default values of other variables.
const maxNesting = 16

var errTooLong = errors.New("is too long after expanding its variables")

// interpolate expands variables as Compose does. It works on parsed text, so that the value of a variable
// cannot change the structure of the document:
//
//	$VAR ${VAR}        the value; an error if the variable is not set
//	${VAR:-x} ${VAR-x} the value, or x if the variable is not set; with a colon, x also if the value is empty
//	${VAR:+x} ${VAR+x} x if the variable is set, else empty; with a colon, also empty if the value is empty
//	${VAR:?x} ${VAR?x} the value; an error with x if the variable is not set; with a colon, also if the value is empty
//	$$                 a dollar sign
//
// x may contain variables. A dollar sign before anything else stays unchanged. The result has at most limit
// bytes.
func interpolate(text string, env map[string]string, limit, depth int) (string, error) {
	if !strings.Contains(text, "$") {
		return text, nil
	}
	if depth > maxNesting {
		return "", fmt.Errorf("has variables nested more than %d deep", maxNesting)
	}
	var out strings.Builder
	for text != "" {
		before, rest, found := strings.Cut(text, "$")
		out.WriteString(before)
		if !found {
			break
		}
		name := leadingName(rest)
		var value string
		switch {
		case strings.HasPrefix(rest, "$"):
			value, rest = "$", rest[1:]
		case strings.HasPrefix(rest, "{"):
			inner, after, ok := closing(rest[1:])
			if !ok {
				return "", fmt.Errorf("has ${ without a closing }: %.40q; write $$ for a dollar sign", "$"+rest)
			}
			var err error
			if value, err = expand(inner, env, limit, depth); err != nil {
				return "", err
			}
			rest = after
		case name != "":
			var set bool
			if value, set = env[name]; !set {
				return "", notSet(name)
			}
			rest = rest[len(name):]
		default:
			value = "$"
		}
		out.WriteString(value)
		if out.Len() > limit {
			return "", errTooLong
		}
		text = rest
	}
	return out.String(), nil
}

// expand returns the value of an expression between ${ and }.
func expand(inner string, env map[string]string, limit, depth int) (string, error) {
	name := leadingName(inner)
	operator := inner[len(name):]
	value, set := env[name]
	if name == "" {
		return "", fmt.Errorf("${%.40s} does not start with the name of a variable; write $$ for a dollar sign", inner)
	}
	if operator == "" {
		if !set {
			return "", notSet(name)
		}
		return value, nil
	}
	if strings.HasPrefix(operator, ":") {
		set, operator = set && value != "", operator[1:]
	}
	if operator == "" || !strings.Contains("-+?", operator[:1]) {
		return "", fmt.Errorf("${%.40s} is not valid: the name must be followed by :-, -, :+, +, :? or ? and a text", inner)
	}
	operand := func() (string, error) { return interpolate(operator[1:], env, limit, depth+1) }
	switch {
	case operator[0] == '+' && set, operator[0] == '-' && !set:
		return operand()
	case operator[0] == '+':
		return "", nil
	case operator[0] == '?' && !set:
		message, err := operand()
		if err == nil {
			_, empty := env[name]
			err = missing(name, empty, message)
		}
		return "", err
	}
	return value, nil
}

// missing returns the error for a variable that must have a value, with the document's message for it.
func missing(name string, empty bool, message string) error {
	state := "is not set"
	if empty {
		state = "is empty"
	}
	if message == "" || message == state {
		return fmt.Errorf("%.80s %s", name, state)
	}
	return fmt.Errorf("%.80s %s: %.200s", name, state, message)
}

func notSet(name string) error {
	return fmt.Errorf("%.80s is not set; give a default as ${%.80s:-default}, or write $$ for a dollar sign", name, name)
}

// closing splits text, which follows a ${, at the matching }.
func closing(text string) (inner, after string, ok bool) {
	open := 0
	for i := 0; i < len(text); i++ {
		switch {
		case strings.HasPrefix(text[i:], "$$"):
			i++
		case strings.HasPrefix(text[i:], "${"):
			open++
			i++
		case text[i] == '}' && open == 0:
			return text[:i], text[i+1:], true
		case text[i] == '}':
			open--
		}
	}
	return "", "", false
}

// leadingName returns the variable name at the start of a text.
func leadingName(text string) string {
	for i := range len(text) {
		c := text[i]
		if c == '_' || c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z' || i > 0 && c >= '0' && c <= '9' {
			continue
		}
		return text[:i]
	}
	return text
}
