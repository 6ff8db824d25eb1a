package main

import (
	"encoding"
	"fmt"
	"reflect"
	"strings"

	"go.yaml.in/yaml/v3"
)

// fill reads a YAML node into a wire type by its JSON names, so that the spec's fields have one
// spelling everywhere. Every mistake names the line and the field.
func fill(node *yaml.Node, into reflect.Value, path string) error {
	if node.Kind == yaml.AliasNode {
		node = node.Alias
	}
	wrong := func(format string, args ...any) error {
		return fmt.Errorf("line %d: %s%s", node.Line, prefixed(path), fmt.Sprintf(format, args...))
	}
	if t, ok := into.Addr().Interface().(encoding.TextUnmarshaler); ok {
		if node.Kind != yaml.ScalarNode {
			return wrong("must be a value")
		}
		if err := t.UnmarshalText([]byte(node.Value)); err != nil {
			return wrong("%v", err)
		}
		return nil
	}
	switch into.Kind() {
	case reflect.Struct:
		if node.Kind != yaml.MappingNode {
			return wrong("must be a map of fields")
		}
		return fillStruct(node, into, path)
	case reflect.Slice:
		if node.Kind != yaml.SequenceNode {
			return wrong("must be a list")
		}
		into.Set(reflect.MakeSlice(into.Type(), len(node.Content), len(node.Content)))
		for i, item := range node.Content {
			if err := fill(item, into.Index(i), fmt.Sprintf("%s[%d]", path, i)); err != nil {
				return err
			}
		}
		return nil
	case reflect.String:
		if node.Kind != yaml.ScalarNode {
			return wrong("must be text")
		}
		into.SetString(node.Value)
		return nil
	case reflect.Map:
		if node.Kind != yaml.MappingNode {
			return wrong("must be a map of names and values")
		}
	}
	if err := node.Decode(into.Addr().Interface()); err != nil {
		return wrong("must be %s", into.Type())
	}
	return nil
}

func fillStruct(node *yaml.Node, into reflect.Value, path string) error {
	fields := map[string]int{}
	for i := range into.NumField() {
		name, _, _ := strings.Cut(into.Type().Field(i).Tag.Get("json"), ",")
		fields[name] = i
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(node.Content); i += 2 {
		name := node.Content[i]
		field, known := fields[name.Value]
		switch {
		case !known:
			return fmt.Errorf("line %d: %s is not a known field", name.Line, join(path, name.Value))
		case seen[name.Value]:
			return fmt.Errorf("line %d: %s is there twice", name.Line, join(path, name.Value))
		}
		seen[name.Value] = true
		if err := fill(node.Content[i+1], into.Field(field), join(path, name.Value)); err != nil {
			return err
		}
	}
	return nil
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

func prefixed(path string) string {
	if path == "" {
		return ""
	}
	return path + " "
}
