"""Plain-Python twin of `kvarray.timeline`: one job, or one event, at a time."""

import math

NEVER = -math.inf


def serial(work, ready, free=NEVER):
    """Lindley's recursion: finish times of one resource that serves in list order."""
    finish = []
    for job_work, job_ready in zip(work, ready, strict=True):
        free = max(job_ready, free) + job_work
        finish.append(free)
    return finish


def round_robin(work, ready, num_streams, free=None):
    """Job i on stream i % num_streams."""
    free = list(free or [NEVER] * num_streams)
    finish = []
    for i, (job_work, job_ready) in enumerate(zip(work, ready, strict=True)):
        stream = i % num_streams
        free[stream] = max(job_ready, free[stream]) + job_work
        finish.append(free[stream])
    return finish


def assigned(work, streams, ready, num_streams):
    """Each job on the stream it is assigned to."""
    free = [NEVER] * num_streams
    finish = []
    for job_work, stream, job_ready in zip(work, streams, ready, strict=True):
        free[stream] = max(job_ready, free[stream]) + job_work
        finish.append(free[stream])
    return finish


def least_loaded(work, ready, free=None):
    """Each job on the stream that has done it first; work[i][s] is its time on stream s."""
    free = list(free or [NEVER] * len(work[0]) if work else [])
    finish, streams = [], []
    for job_work, job_ready in zip(work, ready, strict=True):
        done = [max(job_ready, free[s]) + job_work[s] for s in range(len(free))]
        stream = done.index(min(done))
        free[stream] = done[stream]
        finish.append(done[stream])
        streams.append(stream)
    return finish, streams


def pipeline(work, ready):
    """work[k][i] of job i in stage k; the stages one after the other."""
    finish = []
    for stage in work:
        ready = serial(stage, ready)
        finish.append(ready)
    return finish


def processor_sharing(arrival, work):
    """Event by event: what is left of each job present, which all get an equal share."""
    return max_min_queue(arrival, work, [(0,)] * len(work), [1.0])


def max_min_rates(flows, capacity):
    """Progressive filling; flows maps a flow to its endpoints."""
    rates = dict.fromkeys(flows, 0.0)
    growing = set(flows)
    while growing:
        slack = {}
        for endpoint, most in enumerate(capacity):
            sharers = [flow for flow in flows if endpoint in flows[flow] and flow in growing]
            if sharers:
                used = sum(rates[flow] for flow in flows if endpoint in flows[flow])
                slack[endpoint] = (most - used) / len(sharers)
        step = min(slack.values())
        for flow in growing:
            rates[flow] += step
        full = {endpoint for endpoint in slack if slack[endpoint] <= step * (1 + 1e-12)}
        growing = {flow for flow in growing if not full & set(flows[flow])}
    return rates


def max_min_queue(arrival, size, endpoints, capacity):
    """Event by event: what is left of each flow under way."""
    finish = [0.0] * len(size)
    left = {}
    now, arrived = 0.0, 0
    while left or arrived < len(size):
        rates = max_min_rates({flow: endpoints[flow] for flow in left}, capacity)
        departures = {flow: now + left[flow] / rates[flow] for flow in left}
        first = min(departures, key=lambda flow: (departures[flow], flow), default=None)
        comes = arrival[arrived] if arrived < len(size) else math.inf
        moment = min(comes, departures.get(first, math.inf))
        for flow in left:
            left[flow] = max(left[flow] - rates[flow] * (moment - now), 0.0)
        if first is not None and departures[first] <= comes:
            finish[first] = moment
            del left[first]
        else:
            left[arrived] = float(size[arrived])
            arrived += 1
        now = moment
    return finish
