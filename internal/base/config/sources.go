package config

import (
	"net/url"
	"strings"
)

// Hidden is shown in the place of a secret.
const Hidden = "(hidden)"

// Sources are where values came from, by their keys: FILE:LINE, $VARIABLE or --FLAG.
// What is not in it is a default.
type Sources map[string]string

func (s Sources) of(key string) string {
	if source := s[key]; source != "" {
		return source
	}
	return "default"
}

// Setting is a Field as it can be shown to everybody.
type Setting struct {
	Key string `json:"key"`
	// Value is a string, a number, a boolean or a list of strings.
	Value  any    `json:"value"`
	Source string `json:"source"`
}

// Settings returns what a command of the role uses, in the order of the Fields.
func (c *Config) Settings(sources Sources, role Role) []Setting {
	var settings []Setting
	for _, f := range c.Fields() {
		if f.Role == AnyRole || f.Role == role {
			settings = append(settings, Setting{f.Key, f.Shown(), sources.of(f.Key)})
		}
	}
	return settings
}

// Shown returns the value, without what of it is secret.
func (f Field) Shown() any {
	switch {
	case f.IsList() && f.value.Len() == 0:
		return []string{}
	case !f.Secret || f.String() == "":
		return f.value.Interface()
	case f.url:
		return hidePassword(f.String())
	}
	return Hidden
}

// SecretTexts returns everything in c that must not be shown.
func (c *Config) SecretTexts() []string {
	var texts []string
	for _, f := range c.Fields() {
		text := f.String()
		if !f.Secret || text == "" {
			continue
		}
		texts = append(texts, text)
		if !f.url {
			continue
		}
		for _, password := range passwords(text) {
			texts = append(texts, password)
			// As a driver may have it in its messages.
			if decoded, err := url.PathUnescape(password); err == nil {
				texts = append(texts, decoded)
			}
		}
	}
	return texts
}

// passwords returns those in a database's URL: before its host, and among its
// parameters.
func passwords(endpoint string) []string {
	var found []string
	address, parameters, _ := strings.Cut(endpoint, "?")
	for parameter := range strings.SplitSeq(parameters, "&") {
		if name, password, _ := strings.Cut(parameter, "="); strings.HasSuffix(strings.ToLower(name), "password") {
			found = append(found, password)
		}
	}
	if len(found) > 0 {
		endpoint = address
	}
	if _, password, ok := credentials(endpoint); ok {
		found = append(found, password)
	}
	return found
}

// hidePassword takes the password out of a database's URL, or all of it if that may
// be anywhere.
func hidePassword(endpoint string) string {
	if strings.Contains(strings.ToLower(endpoint), "password=") {
		return Hidden
	}
	user, password, ok := credentials(endpoint)
	if !ok {
		return endpoint
	}
	return strings.Replace(endpoint, user+":"+password+"@", user+":"+Hidden+"@", 1)
}

// credentials returns what is before the last @ of a URL. MySQL's passwords may have
// an @ themselves.
func credentials(endpoint string) (user, password string, ok bool) {
	_, rest, _ := strings.Cut(endpoint, "://")
	at := strings.LastIndex(rest, "@")
	if at < 0 {
		return "", "", false
	}
	return strings.Cut(rest[:at], ":")
}
