package upgradecontrol

import (
	"fmt"
	"slices"
	"strings"
	"time"
	// A small system has no zones of its own. CronJobs need them, too: upstream's main package
	// imports this (k8s.io/kubernetes/cmd/kube-controller-manager/controller-manager.go).
	_ "time/tzdata"

	"github.com/kedge-dev/kedge/internal/base/upgrades"
)

// opens tells whether a window is open, and if not, when it opens next. It fails if the window
// cannot be read.
func opens(window *upgrades.Window, now time.Time) (open bool, next time.Time, err error) {
	if window == nil {
		return true, time.Time{}, nil
	}
	zone, err := time.LoadLocation(window.TimeZone) // UTC without a name
	if err != nil {
		return false, time.Time{}, fmt.Errorf("spec.window.timeZone: %w. Use a name such as Europe/Berlin", err)
	}
	first, err := clock(window.StartTime, 0)
	if err != nil {
		return false, time.Time{}, fmt.Errorf("spec.window.startTime: %w", err)
	}
	last, err := clock(window.EndTime, 24*60)
	if err != nil {
		return false, time.Time{}, fmt.Errorf("spec.window.endTime: %w", err)
	}
	if last <= first {
		last += 24 * 60
	}
	days, err := weekdays(window.Days)
	if err != nil {
		return false, time.Time{}, fmt.Errorf("spec.window.days: %w", err)
	}
	now = now.In(zone)
	at := func(day, minutes int) time.Time {
		return time.Date(now.Year(), now.Month(), now.Day()+day, 0, minutes, 0, 0, zone)
	}
	// The window of yesterday may still be open.
	for day := -1; day <= 7; day++ {
		if len(days) > 0 && !slices.Contains(days, at(day, 0).Weekday()) {
			continue
		}
		switch start := at(day, first); {
		case now.Before(start):
			return false, start, nil
		case now.Before(at(day, last)):
			return true, time.Time{}, nil
		}
	}
	return false, at(8, first), nil
}

// clock returns the minutes since midnight of a time such as 22:30.
func clock(text string, otherwise int) (int, error) {
	if text == "" {
		return otherwise, nil
	}
	t, err := time.Parse("15:04", text)
	if err != nil {
		return 0, fmt.Errorf("%q is not a time: write it as 22:30", text)
	}
	return t.Hour()*60 + t.Minute(), nil
}

// weekdays reads days such as monday, mon or mo.
func weekdays(names []string) (days []time.Weekday, err error) {
	for _, name := range names {
		day := slices.IndexFunc(week, func(day string) bool { return len(name) >= 2 && strings.HasPrefix(day, strings.ToLower(name)) })
		if day < 0 {
			return nil, fmt.Errorf("%q is not a day: use some of %s", name, strings.Join(week, ", "))
		}
		days = append(days, time.Weekday(day))
	}
	return days, nil
}

// week has the days in the order of time.Weekday.
var week = []string{"sunday", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday"}
