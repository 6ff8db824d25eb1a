package main

import (
	"cmp"
	"log/slog"
	"net/url"
	"strings"

	"github.com/boxfleet/boxfleet/protocol"
)

// leastSecret is the minimum length of a secret to redact. Shorter secrets also occur as parts of words.
const leastSecret = 4

// secrets returns this process's credentials for NATS in every form in which a library may put them in an error or log
// line: a password appears URL-encoded and decoded.
func (c *config) secrets() []string {
	found := []string{c.Token, c.Password}
	for _, text := range strings.Split(c.NATS, ",") {
		_, rest, hasScheme := strings.Cut(text, "://")
		if !hasScheme {
			rest = text
		}
		at := strings.LastIndexByte(rest, '@')
		if at < 0 {
			continue
		}
		who := rest[:at]
		_, password, isUser := strings.Cut(who, ":")
		secret := cmp.Or(password, who)
		if isUser && password == "" {
			continue
		}
		found = append(found, secret)
		if decoded, err := url.PathUnescape(secret); err == nil {
			found = append(found, decoded)
		}
	}
	var long []string
	for _, secret := range found {
		if len(secret) >= leastSecret {
			long = append(long, secret)
		}
	}
	return distinct(long)
}

// redacted replaces passwords and tokens in a text.
func (c *config) redacted(text string) string { return redacted(text, c.secrets()) }

func redacted(text string, secrets []string) string {
	text = protocol.Redacted(text)
	for _, secret := range secrets {
		text = strings.ReplaceAll(text, secret, "xxxxx")
	}
	return text
}

// redactedAttr returns a function that removes passwords and tokens from log attributes.
func (c *config) redactedAttr() func([]string, slog.Attr) slog.Attr {
	secrets := c.secrets()
	return func(_ []string, a slog.Attr) slog.Attr {
		switch a.Value.Kind() {
		case slog.KindString, slog.KindAny:
			before := a.Value.String()
			if after := redacted(before, secrets); after != before {
				a.Value = slog.StringValue(after)
			}
		}
		return a
	}
}
