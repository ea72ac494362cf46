package config

import (
	"slices"
	"strings"
	"testing"

	"github.com/sirupsen/logrus"
)

func TestLevels(t *testing.T) {
	for words, want := range map[string]struct {
		debug bool
		words string
	}{
		"":                               {false, "info"},
		"warn":                           {false, "warn"},
		"scheduler=debug":                {false, "info scheduler=debug"},
		"scheduler=debug,error,dns=warn": {false, "error dns=warn scheduler=debug"},
		"dns=error":                      {true, "debug dns=error"},
		"info,info":                      {true, "info"},
	} {
		log := Log{Debug: want.debug}
		if words != "" {
			log.Level = strings.Split(words, ",")
		}
		if _, err := ParseLevels(log.Level); err != nil {
			t.Errorf("got error %[2]v for log-level %[1]q, want none", words, err)
		}
		if got := strings.Join(log.Levels().Words(), " "); got != want.words {
			t.Errorf("%s: got %s, want %s", words, got, want.words)
		}
	}
	for _, word := range []string{"loud", "trace", "fatal", "=debug", "dns=", "info=debug=warn"} {
		if _, err := ParseLevels([]string{word}); err == nil {
			t.Errorf("%s is a level", word)
		}
	}
	of := Levels{"": logrus.InfoLevel, "controllers": logrus.DebugLevel, "controllers/job": logrus.ErrorLevel}
	for component, want := range map[string]logrus.Level{
		"": logrus.InfoLevel, "dns": logrus.InfoLevel, "controllers": logrus.DebugLevel,
		"controllers/deployment": logrus.DebugLevel, "controllers/job": logrus.ErrorLevel,
	} {
		if got := of.Of(component); got != want {
			t.Errorf("%s has %s, want %s", component, got, want)
		}
	}
	if !slices.IsSorted([]logrus.Level{logrus.ErrorLevel, logrus.WarnLevel, logrus.InfoLevel, logrus.DebugLevel}) {
		t.Error("logrus's levels are in another order")
	}
}
