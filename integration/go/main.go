// Observes topics with Pulsar's client for Go. Run with a service URL; executes the commands of
// its standard input line by line, as Observe.java does, and ends with it.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"log"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/backoff"
	pulsarlog "github.com/apache/pulsar-client-go/pulsar/log"
)

const (
	shortestLong = 100 // longer values are shown by length and checksum
	soonEnough   = 30 * time.Second
)

// seen is what one observer has seen, each message once. That one comes again is an error, until a
// connection may be lost, and acknowledgements with it.
type seen struct {
	sync.Mutex
	ids         map[string]bool
	deliveries  map[string]bool
	rows        []string
	interrupted bool
}

// add notes a message that was delivered to a consumer; 0 stands for all of a subscription.
func (s *seen) add(consumer int, message pulsar.Message) {
	s.Lock()
	defer s.Unlock()
	id := string(message.ID().Serialize()) // as a text it lacks the index in the batch
	if !s.ids[id] {
		s.ids[id] = true
		s.rows = append(s.rows, row(message.Key(), message.Payload()))
	}
	delivery := fmt.Sprintf("%d %s", consumer, id)
	if s.deliveries[delivery] && !s.interrupted {
		s.rows = append(s.rows, fmt.Sprintf("ERROR=delivered twice: %v", message.ID()))
	}
	s.deliveries[delivery] = true
}

func (s *seen) interrupt() {
	s.Lock()
	defer s.Unlock()
	s.interrupted = true
}

func (s *seen) complain(what string) {
	s.Lock()
	defer s.Unlock()
	s.rows = append(s.rows, "ERROR="+what)
}

func (s *seen) shown() string {
	s.Lock()
	defer s.Unlock()
	return strings.Join(s.rows, "\t")
}

func row(key string, value []byte) string {
	if len(value) >= shortestLong {
		return fmt.Sprintf("%s=%d:%d", key, len(value), crc32.ChecksumIEEE(value))
	}
	return key + "=" + string(value)
}

type observers struct {
	kinds []string
	seen  map[string]*seen
	stop  []func()
}

func (o *observers) next(kind string) *seen {
	fresh := &seen{ids: map[string]bool{}, deliveries: map[string]bool{}}
	o.kinds = append(o.kinds, kind)
	o.seen[kind] = fresh
	return fresh
}

// soon comes back after a short while each time: by default a client waits up to a minute.
type soon struct{}

func (soon) Next() time.Duration       { return 200 * time.Millisecond }
func (soon) IsMaxBackoffReached() bool { return false }
func (soon) Reset()                    {}

func comeBackSoon() backoff.Policy { return soon{} }

// ended tells whether an observer was closed; any other error is shown, and tried again.
func ended(ctx context.Context, err error) bool {
	if ctx.Err() != nil {
		return true
	}
	log.Print(err)
	time.Sleep(100 * time.Millisecond)
	return false
}

func (o *observers) interrupt() {
	for _, one := range o.seen {
		one.interrupt()
	}
}

func open(topic string) *observers {
	all := &observers{seen: map[string]*seen{}}
	// Clients of its own: whoever reads a sealed topic to its end closes the connection that all of
	// a client share ("invalid command type"), and a Reader loses what it has not taken yet.
	client, own := connect(), connect()
	for kind, number := range map[pulsar.SubscriptionType]int{
		pulsar.Exclusive: 1, pulsar.Shared: 1, pulsar.Failover: 2, pulsar.KeyShared: 2,
	} {
		rows := all.next("Go " + []string{"Exclusive", "Shared", "Failover", "Key_Shared"}[kind])
		name := fmt.Sprintf("go-%d-%d", kind, time.Now().UnixNano())
		for i := range number {
			to := 0
			if kind == pulsar.Failover {
				// What the active one has not acknowledged comes again to the one that becomes active.
				to = i
			}
			consumer, err := client.Subscribe(pulsar.ConsumerOptions{
				Topic:                       topic,
				SubscriptionName:            name,
				Type:                        kind,
				SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest,
				BackOffPolicyFunc:           comeBackSoon,
			})
			if err != nil {
				log.Fatal(err)
			}
			ctx, cancel := context.WithCancel(context.Background())
			go func() {
				for {
					message, err := consumer.Receive(ctx)
					if err != nil {
						if ended(ctx, err) {
							return
						}
						continue
					}
					rows.add(to, message)
					_ = consumer.Ack(message)
				}
			}()
			all.stop = append(all.stop, func() { cancel(); consumer.Close() })
		}
	}
	reader, err := own.CreateReader(pulsar.ReaderOptions{
		Topic: topic, StartMessageID: pulsar.EarliestMessageID(), BackoffPolicyFunc: comeBackSoon,
	})
	if err != nil {
		log.Fatal(err)
	}
	rows := all.next("Go Reader")
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		for ctx.Err() == nil {
			if !reader.HasNext() {
				time.Sleep(10 * time.Millisecond)
				continue
			}
			patient, done := context.WithTimeout(ctx, soonEnough)
			message, err := reader.Next(patient)
			done()
			if err != nil {
				if ended(ctx, err) {
					return
				}
				if errors.Is(err, context.DeadlineExceeded) {
					rows.complain("HasNext has announced what does not come")
				}
				continue
			}
			rows.add(0, message)
		}
	}()
	all.stop = append(all.stop, func() { cancel(); reader.Close(); own.Close(); client.Close() })
	return all
}

func connect() pulsar.Client {
	quiet := slog.New(slog.NewTextHandler(io.Discard, nil))
	client, err := pulsar.NewClient(pulsar.ClientOptions{
		URL: os.Args[1], Logger: pulsarlog.NewLoggerWithSlog(quiet),
		// HasNext waits so long for an answer that a broker which gave the topic away does not send.
		OperationTimeout: 5 * time.Second,
	})
	if err != nil {
		log.Fatal(err)
	}
	return client
}

func main() {
	topics := map[string]*observers{}
	sealed := map[string]bool{}
	commands := bufio.NewScanner(os.Stdin)
	for commands.Scan() {
		command, topic, _ := strings.Cut(commands.Text(), "\t")
		switch command {
		case "open":
			topics[topic] = open(topic)
			if sealed[topic] {
				topics[topic].interrupt()
			}
		case "rows":
			for _, kind := range topics[topic].kinds {
				fmt.Printf("> %s\t%s\n", kind, topics[topic].seen[kind].shown())
			}
		case "seal":
			sealed[topic] = true
		case "interrupt":
			topics[topic].interrupt()
		case "close":
			for _, stop := range topics[topic].stop {
				stop()
			}
			delete(topics, topic)
		default:
			log.Fatal(commands.Text())
		}
		fmt.Println("> .")
	}
}
