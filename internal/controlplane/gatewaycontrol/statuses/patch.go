package statuses

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"
)

// timeField is the field of conditions that says since when they are so.
const timeField = "lastTransitionTime"

// patchOf returns the merge patch that leads from one status to another, or nil if they differ
// only in times. Conditions without a time get now.
func patchOf(before, after any, now time.Time) (map[string]any, error) {
	from, err := fields(before)
	if err != nil {
		return nil, err
	}
	to, err := fields(after)
	if err != nil {
		return nil, err
	}
	same, err := sameButTimes(from, to)
	if same || err != nil {
		return nil, err
	}
	fillTimes(to, now.UTC().Format(time.RFC3339))
	for key, value := range to {
		if value == nil {
			to[key] = []any{} // a list that is required
		}
	}
	// A merge patch replaces lists, and removes what is null.
	for key := range from {
		if _, stays := to[key]; !stays {
			to[key] = nil
		}
	}
	return to, nil
}

// fields returns the fields of a status.
func fields(status any) (map[string]any, error) {
	encoded, err := json.Marshal(status)
	if err != nil {
		return nil, fmt.Errorf("encode status: %w", err)
	}
	found := map[string]any{}
	if err := json.Unmarshal(encoded, &found); err != nil {
		return nil, fmt.Errorf("decode status: %w", err)
	}
	return found, nil
}

// sameButTimes compares two statuses without the times of conditions.
func sameButTimes(a, b map[string]any) (bool, error) {
	one, err := json.Marshal(withoutTimes(a))
	if err != nil {
		return false, fmt.Errorf("encode status: %w", err)
	}
	other, err := json.Marshal(withoutTimes(b))
	if err != nil {
		return false, fmt.Errorf("encode status: %w", err)
	}
	return bytes.Equal(one, other), nil
}

// withoutTimes returns a copy of a value without the times of conditions, and without what is
// empty.
func withoutTimes(value any) any {
	switch value := value.(type) {
	case map[string]any:
		copied := maps.Clone(value)
		for key, field := range copied {
			if list, is := field.([]any); key == timeField || field == nil || is && len(list) == 0 {
				delete(copied, key)
			} else {
				copied[key] = withoutTimes(field)
			}
		}
		return copied
	case []any:
		copied := slices.Clone(value)
		for i := range copied {
			copied[i] = withoutTimes(copied[i])
		}
		return copied
	}
	return value
}

// fillTimes sets the times of conditions that have none.
func fillTimes(value any, now string) {
	switch value := value.(type) {
	case map[string]any:
		if time, has := value[timeField]; has && time == nil {
			value[timeField] = now
		}
		for _, field := range value {
			fillTimes(field, now)
		}
	case []any:
		for _, element := range value {
			fillTimes(element, now)
		}
	}
}
