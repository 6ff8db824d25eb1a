package main

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
)

func text(into *string) func(string) error {
	return func(v string) error { *into = v; return nil }
}

func oneOf(into *string, values ...string) func(string) error {
	return func(v string) error {
		if !slices.Contains(values, v) {
			return fmt.Errorf("must be %s, got %.40q", strings.Join(values, ", "), v)
		}
		*into = v
		return nil
	}
}

func parsed[T any](into *T, parse func(string) (T, error)) func(string) error {
	return func(v string) (err error) { *into, err = parse(v); return err }
}

// optional returns a setter that does nothing if the value is empty.
func optional(set func(string) error) func(string) error {
	return func(v string) error {
		if v == "" {
			return nil
		}
		return set(v)
	}
}

func list(into *[]string) func(string) error {
	return func(v string) error {
		*into = nil
		for _, item := range strings.Split(v, ",") {
			if item = strings.TrimSpace(item); item != "" {
				*into = append(*into, item)
			}
		}
		return nil
	}
}

// someOf parses a list. The list needs at least one element, and each element must be one of the values.
func someOf(into *[]string, values ...string) func(string) error {
	return func(v string) error {
		if err := list(into)(v); err != nil {
			return err
		}
		for _, item := range *into {
			if !slices.Contains(values, item) {
				return fmt.Errorf("must be one or more of %s, got %.40q", strings.Join(values, ", "), item)
			}
		}
		if len(*into) == 0 {
			return fmt.Errorf("must be one or more of %s", strings.Join(values, ", "))
		}
		return nil
	}
}

func notNegative(v string) (time.Duration, error) {
	d, err := time.ParseDuration(v)
	if err != nil || d < 0 {
		return 0, fmt.Errorf("must be a duration of 0s or more, such as 90s or 1h30m, got %.40q", v)
	}
	return d, nil
}

func positive(v string) (time.Duration, error) {
	d, err := notNegative(v)
	if err == nil && d == 0 {
		err = errors.New("must be more than 0")
	}
	return d, err
}

func positiveBytes(v string) (protocol.Bytes, error) {
	b, err := protocol.ParseBytes(v)
	if err == nil && b <= 0 {
		err = errors.New("must be more than 0")
	}
	return b, err
}

// between returns a function that parses an integer from least to most.
func between(least, most int) func(string) (int, error) {
	return func(v string) (int, error) {
		n, err := strconv.Atoi(v)
		if err != nil || n < least || n > most {
			return 0, fmt.Errorf("must be %d to %d, got %.40q", least, most, v)
		}
		return n, nil
	}
}

// copies parses a number of replicas. It rejects even numbers: an even number of replicas survives no more failures
// than the next lower odd number.
func copies(v string) (int, error) {
	n, err := strconv.Atoi(v)
	if err != nil || n != 1 && n != 3 && n != 5 {
		return 0, fmt.Errorf("must be 1, 3 or 5, got %.40q", v)
	}
	return n, nil
}

// someBytes parses a size limit. It rejects 0, which could mean either nothing or unlimited.
func someBytes(v string) (protocol.Bytes, error) {
	n, err := protocol.ParseBytes(v)
	if err == nil && n == 0 {
		err = errors.New("must be more than 0")
	}
	return n, err
}

func parseFloat(v string) (float64, error) { return strconv.ParseFloat(v, 64) }
