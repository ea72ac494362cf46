package resourcemetrics

import (
	"encoding/json"
	"fmt"
	"io"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// longest is how many bytes of a kubelet's answer are read. A node with 110 pods of three
// containers sends less than 1 MB.
const longest = 8 << 20

// figures are what a kubelet says of a container, or of its node. The fields are some of
// stats.ContainerStats and of stats.NodeStats.
type figures struct {
	Name      string             `json:"name"`
	StartTime metav1.Time        `json:"startTime"`
	CPU       *stats.CPUStats    `json:"cpu"`
	Memory    *stats.MemoryStats `json:"memory"`
	Swap      *stats.SwapStats   `json:"swap"`
}

// readSummary reads a kubelet's summary (stats.Summary), and calls the functions for the
// node and for each container. It decodes one container after the other: a list of
// millions of empty objects, which a captured node may send, would take a hundred times
// its length in memory.
func readSummary(r io.Reader, node func(figures), container func(types.UID, figures)) error {
	limited := &io.LimitedReader{R: r, N: longest}
	d := decoder{json.NewDecoder(limited)}
	err := d.object(func(key string) error {
		switch key {
		case "node":
			var f figures
			err := d.Decode(&f)
			node(f)
			return err
		case "pods":
			return d.array(func() error { return d.pod(container) })
		}
		return d.skip()
	})
	if err != nil && limited.N <= 0 {
		return fmt.Errorf("the kubelet's summary is longer than %d MB", longest>>20)
	}
	if err != nil {
		return fmt.Errorf("decode the kubelet's summary: %w", err)
	}
	return nil
}

// decoder reads JSON in pieces.
type decoder struct{ *json.Decoder }

// pod reads a pod (stats.PodStats). The kubelet puts the pod's name before the containers.
func (d decoder) pod(container func(types.UID, figures)) error {
	var pod stats.PodReference
	return d.object(func(key string) error {
		switch key {
		case "podRef":
			return d.Decode(&pod)
		case "containers":
			return d.array(func() error {
				var f figures
				err := d.Decode(&f)
				container(types.UID(pod.UID), f)
				return err
			})
		}
		return d.skip()
	})
}

// skip reads a value that is of no interest.
func (d decoder) skip() error {
	var value json.RawMessage
	return d.Decode(&value)
}

// object reads an object, or null. read must read the value of each key.
func (d decoder) object(read func(key string) error) error {
	return d.list('{', func() error {
		key, err := d.Token()
		if err != nil {
			return err
		}
		name, _ := key.(string) // in an object nothing else comes here
		return read(name)
	})
}

// array reads an array, or null. read must read each element.
func (d decoder) array(read func() error) error { return d.list('[', read) }

func (d decoder) list(begin json.Delim, read func() error) error {
	token, err := d.Token()
	if err != nil || token == nil {
		return err
	}
	if token != begin {
		return fmt.Errorf("want %v, got %v", begin, token)
	}
	for d.More() {
		if err := read(); err != nil {
			return err
		}
	}
	_, err = d.Token()
	return err
}
