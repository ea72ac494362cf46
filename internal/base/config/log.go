package config

import (
	"fmt"
	"slices"
	"strings"

	"github.com/sirupsen/logrus"
)

// levels are the levels that can be set. logrus knows more.
var levels = []string{"error", "warn", "info", "debug"}

// Levels are the least levels that are logged, by component; "" is for all that are
// not named.
type Levels map[string]logrus.Level

// ParseLevels reads LEVEL and COMPONENT=LEVEL. What is said last counts.
func ParseLevels(words []string) (Levels, error) {
	parsed := Levels{"": logrus.InfoLevel}
	for _, word := range words {
		component, name, named := strings.Cut(word, "=")
		if !named {
			component, name = "", word
		}
		level, err := logrus.ParseLevel(name)
		if err != nil || !slices.Contains(levels, name) || named && component == "" {
			return nil, fmt.Errorf("invalid log level %q: use one of %s, or COMPONENT=LEVEL for one component", word, strings.Join(levels, ", "))
		}
		parsed[component] = level
	}
	return parsed, nil
}

// Levels returns what is to be logged. It is for a validated Config.
func (l *Log) Levels() Levels {
	words := l.Level
	if l.Debug {
		words = append([]string{"debug"}, words...)
	}
	parsed, _ := ParseLevels(words)
	return parsed
}

// Of returns the level of a component, or of a part of one, COMPONENT/PART.
func (l Levels) Of(component string) logrus.Level {
	if level, ok := l[component]; ok {
		return level
	}
	whole, _, _ := strings.Cut(component, "/")
	if level, ok := l[whole]; ok {
		return level
	}
	return l[""]
}

// Words are what ParseLevels read.
func (l Levels) Words() []string {
	var words []string
	for component, level := range l {
		// logrus's name of warn is another.
		name := levels[level-logrus.ErrorLevel]
		if component != "" {
			name = component + "=" + name
		}
		words = append(words, name)
	}
	// What is for all comes first.
	slices.SortFunc(words, func(a, b string) int {
		if named := strings.Count(a, "=") - strings.Count(b, "="); named != 0 {
			return named
		}
		return strings.Compare(a, b)
	})
	return words
}

func (v *validator) log(l *Log) {
	if l.Verbosity < 0 || l.Verbosity > 10 {
		v.fault("v", "invalid verbosity %d: use a number from 0 to 10", l.Verbosity)
	}
	if _, err := ParseLevels(l.Level); err != nil {
		v.fault("log-level", "%v", err)
	}
	v.oneOf("log-format", l.Format, []string{"text", "json"})
	v.absoluteIfSet("log", l.File)
	if l.MaxSize < 1 {
		v.fault("log-max-size", "invalid size %d: use a number of MB, 1 or more", l.MaxSize)
	}
	if l.MaxFiles < 1 {
		v.fault("log-max-files", "invalid number of files %d: use 1 or more", l.MaxFiles)
	}
}
